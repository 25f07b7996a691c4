/**
 * Makes elements. All text becomes text nodes, so nothing in an event is ever read as HTML, and no
 * address in an event becomes a link or an image.
 */

const SVG = "http://www.w3.org/2000/svg";
const REFUSED = /^(?:on|src|style|action|formaction|data$|ping)/i;

/**
 * @param {string} tag
 * @param {Record<string, any>} [attributes] Functions become listeners: `{onclick: ...}`. `null`,
 *   `undefined` and `false` are left out, and `true` is an attribute without a value.
 * @param {...any} children Elements, texts, numbers or lists of them.
 * @returns {HTMLElement}
 */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  setAttributes(element, attributes);
  append(element, children);
  return element;
}

/** As `h`, of an SVG element. */
export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  setAttributes(element, attributes);
  append(element, children);
  return element;
}

/** Replaces all children of an element. */
export function fill(element, ...children) {
  element.replaceChildren();
  append(element, children);
  return element;
}

/** Gives an element attributes, as `h` does. */
export function setAttributes(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function" && name.startsWith("on")) {
      element.addEventListener(name.slice(2), value);
      continue;
    }
    if (REFUSED.test(name)) throw new Error(`the attribute ${name} is never set`);
    if (name === "href" && !/^#|^docs$|^v1\/login\/oidc$/.test(value))
      throw new Error("links lead to this page only");
    element.setAttribute(name, value === true ? "" : String(value));
  }
}

function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : String(child));
  }
}

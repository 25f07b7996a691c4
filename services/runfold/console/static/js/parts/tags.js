/** Labels and scopes as small links that filter a list. */

import { h } from "../dom.js";
import { linkTo } from "../router.js";

/**
 * @param {string} list the address of the list that each label filters
 * @param {Record<string, string> | undefined} labels
 * @returns {HTMLElement[]}
 */
export function labelTags(list, labels) {
  return Object.entries(labels ?? {}).map(([key, value]) =>
    h("a", { class: "tag", href: linkTo([list], { label: `${key}:${value}` }) }, `${key}: ${value}`),
  );
}

/**
 * The scope of a memory, as one link to all memories of exactly this scope.
 * @param {string} bank
 * @param {Record<string, string>} scope
 * @param {string} [query] the nearest in meaning to this text
 * @returns {HTMLElement}
 */
export function scopeTag(bank, scope, query) {
  const pairs = scopePairs(scope);
  return h(
    "a",
    { class: "tag", href: linkTo(["memories"], { bank, scope: pairs, query }) },
    pairs.join(", "),
  );
}

/** @returns {string[]} the pairs of a scope as the API's parameter `scope` has them */
export function scopePairs(scope) {
  return Object.entries(scope).map(([key, value]) => `${key}:${value}`);
}

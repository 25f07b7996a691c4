/** The login: an API key or a token becomes a cookie that scripts cannot read. */

import { h, fill } from "./dom.js";
import { ApiError, change, getJson, setToken } from "./http.js";

const FAILED = "#login-failed";

/** The name of the place in the storage of this tab. The provider does not get it. */
const PLACE = "runfold-place";

/**
 * What the service says about the reader.
 * @typedef {{authentication: boolean, subject: string, tenant: string, scopes: string[],
 *   agents: string[] | null, users: string[] | null, token: string | null}} Login
 */

/**
 * @returns {Promise<Login | null>} null if the service asks for a credential that the browser does
 *   not have. Throws `ApiError` if the service does not answer.
 */
export async function readLogin() {
  try {
    const login = await getJson("v1/login");
    setToken(login.token);
    return login;
  } catch (error) {
    if (error instanceof ApiError && error.status === 401) return null;
    throw error;
  }
}

/** Goes to the place from which the reader went to the identity provider. */
export function returnToPlace() {
  const place = sessionStorage.getItem(PLACE);
  sessionStorage.removeItem(PLACE);
  if (place !== null && location.hash === "") history.replaceState(null, "", place);
}

/** The browser forgets the credential. */
export async function logOut() {
  await change("DELETE", "v1/login");
  setToken(null);
}

async function logIn(credential) {
  await change("POST", "v1/login", undefined, { headers: { Authorization: `Bearer ${credential}` } });
  const login = await readLogin();
  if (login === null) {
    throw new Error("The browser has not kept the login: it does so over https, or on this machine only.");
  }
  return login;
}

/** The page that asks for a credential. Sends the event `login` with the answer as its detail. */
class LoginPage extends HTMLElement {
  connectedCallback() {
    this.message = h("p", { class: "problem", role: "alert", hidden: true });
    this.field = h("input", {
      id: "credential",
      type: "password",
      autocomplete: "current-password",
      spellcheck: "false",
      required: true,
    });
    const form = h(
      "form",
      { class: "login", onsubmit: (event) => this.submit(event) },
      h("h1", {}, "Log in to Runfold"),
      h("label", { for: "credential" }, "API key or token"),
      this.field,
      this.message,
      h("button", { class: "primary", type: "submit" }, "Log in"),
      this.hasAttribute("has-provider") && providerLink(),
      h(
        "p",
        { class: "hint" },
        "To see runs, the key needs the scope ",
        h("code", {}, "read"),
        ". Make one with ",
        h("code", {}, "runfold keys add console --scope read"),
        ".",
      ),
    );
    fill(this, h("main", { id: "main", class: "login-page" }, form));
    this.field.focus();
    if (location.hash === FAILED) {
      history.replaceState(null, "", location.pathname);
      this.show("The login by the identity provider failed. The log of the API says why.");
    }
  }

  async submit(event) {
    event.preventDefault();
    const credential = this.field.value.trim();
    this.message.hidden = true;
    if (!/^[\x21-\x7e]+$/.test(credential)) {
      this.show("A key or a token has letters, digits and signs without spaces.");
      return;
    }
    try {
      this.dispatchEvent(new CustomEvent("login", { detail: await logIn(credential), bubbles: true }));
    } catch (error) {
      this.show(error.message);
    }
  }

  show(text) {
    this.message.textContent = text;
    this.message.hidden = false;
    this.field.focus();
  }
}

function providerLink() {
  const keepPlace = () => sessionStorage.setItem(PLACE, location.hash || "#/");
  return h(
    "a",
    { class: "button", href: "v1/login/oidc", onclick: keepPlace },
    "Log in by your organisation",
  );
}

customElements.define("rf-login", LoginPage);

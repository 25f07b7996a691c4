/** The console: asks who the reader is, and shows the login, or the menu and a view. */

import { h, fill } from "./dom.js";
import { whenUnauthenticated } from "./http.js";
import { icon } from "./icons.js";
import { logOut, readLogin, returnToPlace } from "./login.js";
import { currentPlace, linkTo, whenPlaceChanges } from "./router.js";
import { shownTheme, switchTheme } from "./theme.js";
import { maySee, VIEWS, viewOf } from "./views.js";

class RunfoldConsole extends HTMLElement {
  connectedCallback() {
    this.addEventListener("login", (event) => this.enter(event.detail));
    whenPlaceChanges(() => this.showPlace());
    whenUnauthenticated(() => this.login && this.askForLogin());
    this.begin();
  }

  async begin() {
    try {
      this.enter(await readLogin());
    } catch (error) {
      const again = h("button", { onclick: () => this.begin() }, "Try again");
      fill(
        this,
        h("main", { id: "main", class: "login-page" }, h("p", { role: "alert" }, error.message), again),
      );
    }
  }

  enter(login) {
    this.login = login;
    this.view = null;
    if (login === null) {
      this.askForLogin();
      return;
    }
    returnToPlace();
    this.main = h("main", { id: "main", tabindex: "-1" });
    this.menu = h("nav", { "aria-label": "Views" });
    fill(this, this.header(), this.main);
    this.showPlace();
  }

  askForLogin() {
    this.login = null;
    fill(this, h("rf-login", { "has-provider": this.hasAttribute("has-provider") }));
  }

  header() {
    const { login } = this;
    const theme = h(
      "button",
      {
        class: "quiet",
        title: "Switch between light and dark",
        "aria-label": "Switch between light and dark",
      },
      icon(shownTheme() === "dark" ? "sun" : "moon"),
    );
    theme.addEventListener("click", () => {
      switchTheme();
      fill(theme, icon(shownTheme() === "dark" ? "sun" : "moon"));
    });
    return h(
      "header",
      { class: "top" },
      h("a", { class: "brand", href: linkTo(["runs"]) }, "Runfold"),
      this.menu,
      h("span", { class: "space" }),
      login.authentication && h("span", { class: "who", title: login.subject }, login.tenant),
      h("a", { class: "quiet", href: "docs" }, "API"),
      theme,
      login.authentication &&
        h("button", { class: "quiet", onclick: () => this.leave() }, icon("out"), "Log out"),
    );
  }

  async leave() {
    await logOut().catch(() => null);
    this.askForLogin();
  }

  showPlace() {
    if (!this.login) return;
    const place = currentPlace();
    const view = viewOf(place);
    const shown = VIEWS.filter((each) => maySee(each, this.login));
    const items = shown.map((each) =>
      h(
        "a",
        { href: linkTo([each.path]), "aria-current": each.path === view.path ? "page" : null },
        each.title,
      ),
    );
    fill(this.menu, items);
    this.menu.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
    document.title = `${place.parts[1] ?? view.title} · Runfold`;
    if (!maySee(view, this.login)) {
      fill(
        this.main,
        h("p", { class: "empty" }, `This view needs a key with the scope “${view.scopes[0]}”.`),
      );
      this.view = null;
      return;
    }
    if (this.view?.localName !== view.element) {
      this.view = h(view.element);
      fill(this.main, this.view);
    }
    this.view.show(place, this.login);
  }
}

customElements.define("rf-console", RunfoldConsole);

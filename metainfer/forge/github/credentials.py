"""Who the bot is on GitHub: a token from the environment, or an App that asks for short-lived ones."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from metainfer.errors import InputError
from metainfer.forge.github.address import GitHubAddress

if TYPE_CHECKING:
    from github.Auth import Auth

TOKEN_VARIABLES = ("METAINFER_GITHUB_TOKEN", "GITHUB_TOKEN", "GH_TOKEN")
APP_ID = "METAINFER_APP_ID"
APP_KEY = "METAINFER_APP_KEY"
MEMBERS_TOKEN = "METAINFER_MEMBERS_TOKEN"
"""May read who is in a team of the organisation, and nothing else. The token of a workflow run may not."""
SECRET_VARIABLES = (*TOKEN_VARIABLES, APP_KEY, MEMBERS_TOKEN)
"""What must never reach a job or a sandbox that runs generated code."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """Exactly one of `token` and `app_id` with `app_key` is set. Never printed."""

    token: str = field(default="", repr=False)
    app_id: str = ""
    app_key: str = field(default="", repr=False)

    @property
    def is_app(self) -> bool:
        return not self.token


def find_credentials(environment: Mapping[str, str] | None = None) -> Credentials:
    """Read them from the environment: our own token first, then an App, then what Actions and `gh` set.

    Raises InputError saying which variables would do.
    """
    environment = os.environ if environment is None else environment
    own, *others = (environment.get(name, "").strip() for name in TOKEN_VARIABLES)
    app_id, app_key = environment.get(APP_ID, "").strip(), environment.get(APP_KEY, "")
    if own:
        return Credentials(token=_one_word(own, TOKEN_VARIABLES[0]))
    if app_id and app_key.strip():
        if not app_id.isdigit():
            raise InputError(f"${APP_ID} is the App's number, which has digits only")
        return Credentials(app_id=app_id, app_key=app_key.replace("\\n", "\n"))
    if app_id or app_key.strip():
        raise InputError(f"a GitHub App needs both ${APP_ID} and ${APP_KEY}, the text of its private key file")
    for name, token in zip(TOKEN_VARIABLES[1:], others, strict=True):
        if token:
            return Credentials(token=_one_word(token, name))
    raise InputError(
        f"no GitHub credentials: set ${TOKEN_VARIABLES[0]} to a fine-grained token (contents and pull requests: "
        f"write), or ${APP_ID} and ${APP_KEY} to an App's"
    )


def auth_for(credentials: Credentials, address: GitHubAddress) -> Auth:
    """PyGithub's form of the credentials. An App is asked once for its installation on the repository."""
    import github
    from github import Auth

    if not credentials.is_app:
        return Auth.Token(credentials.token)
    app = Auth.AppAuth(int(credentials.app_id), credentials.app_key)
    try:
        with github.GithubIntegration(base_url=address.api, auth=app) as integration:
            found = integration.get_repo_installation(address.owner, address.name)
    except github.UnknownObjectException as error:
        raise InputError(
            f"the App {credentials.app_id} is not installed on {address.slug}; install it there"
        ) from error
    except ValueError as error:  # from the parser of the key
        raise InputError(f"${APP_KEY} holds no private key in PEM form") from error
    return app.get_installation_auth(found.id)


def _one_word(token: str, variable: str) -> str:
    if not token.isascii() or not token.isprintable() or " " in token:
        raise InputError(f"${variable} holds a space, line break or other character that no token has")
    return token

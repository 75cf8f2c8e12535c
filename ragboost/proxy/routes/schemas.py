"""What the chat-session API reads, checked by pydantic. Completions' bodies are the backend's."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

_Metadata = dict[
    Annotated[str, StringConstraints(max_length=512)],
    Annotated[str, StringConstraints(max_length=512)],
]


class NewSession(BaseModel):
    """The body that creates a session; an empty one is `{}`."""

    model_config = ConfigDict(extra="forbid")

    model: str | None = Field(None, description="Model of turns that name none.")
    system: str | None = Field(None, description="System prompt of the session.")
    metadata: _Metadata | None = Field(
        None, max_length=16, description="Up to 16 strings of up to 512 characters."
    )


class SessionQuery(BaseModel):
    """The page of a list of sessions."""

    limit: int = Field(20, ge=1, le=100)
    after: str | None = Field(None, description="Id of the last session seen.")

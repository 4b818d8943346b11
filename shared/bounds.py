"""What numbers and names can be, for fields of messages: whatever is beyond that is refused where it is decoded.

Bounds are far beyond what anybody needs, and small enough that sums and products of such numbers are finite."""

from typing import Annotated

from msgspec import Meta

MOST = 10**12

Count = Annotated[int, Meta(ge=0, le=MOST)]
Positive = Annotated[int, Meta(ge=1, le=MOST)]
Change = Annotated[int, Meta(ge=-MOST, le=MOST)]  # of what is counted, or sums of such
TokenId = Annotated[int, Meta(ge=0, lt=2**32)]  # as they are packed
Finite = Annotated[float, Meta(ge=-float(MOST), le=float(MOST))]  # not a number is not among them
Amount = Annotated[float, Meta(ge=0.0, le=float(MOST))]
Share = Annotated[float, Meta(ge=0, le=1)]
Weight = Annotated[float, Meta(gt=0.0, le=1e6)]  # of a client
Duration = Annotated[float, Meta(ge=0.0)]  # milliseconds; infinite for any
Moment = Annotated[float, Meta(ge=-1e15)]  # milliseconds on some clock; infinite for never
SubjectToken = Annotated[
    str, Meta(pattern=r"^[^\s.*>]+\Z", max_length=512)
]  # what stands between two dots of a subject
OptionalToken = Annotated[str, Meta(pattern=r"^[^\s.*>]*\Z", max_length=512)]
SubjectTail = Annotated[str, Meta(pattern=r"^[^\s*>]+\Z", max_length=1024)]  # tokens with dots between them
ProfileKey = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_=.-]+\Z", max_length=512)]  # as keys of buckets are
KeyPart = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]*\Z", max_length=512)]  # of a bucket's key, between its dots
Day = Annotated[str, Meta(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}\Z")]

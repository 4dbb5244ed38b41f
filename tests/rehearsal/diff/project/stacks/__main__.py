"""The smallest project that a diff takes for one of Trainfleet's: a spec, and a program whose `infra` is its
own.
"""

import pulumi

from infra import parts

parts.build(pulumi.Config("trainfleet").require_object("platform"), pulumi.Config("extra"))

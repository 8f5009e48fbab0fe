"""What a cluster keeps on the disk of a host. The client, engines, `Cluster` and MPI ranks read it.

`directories` says where files may be, and whose they are. `files` has the files of clusters and builds on it.
`connection` reads the file that an engine joins with, and remembers the cluster of an engine; it loads little.
"""

from __future__ import annotations

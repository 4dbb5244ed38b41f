module trainfleet.dev/tools/knowledge/goreader

go 1.24

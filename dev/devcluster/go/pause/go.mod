module specserve.dev/dev/pause

go 1.21

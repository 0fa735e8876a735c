module restload

go 1.26.0

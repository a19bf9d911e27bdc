module application

go 1.21

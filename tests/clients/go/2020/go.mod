module client

go 1.21

replace application => ../application

require (
	application v0.0.0
	cloud.google.com/go v0.65.0
	golang.org/x/oauth2 v0.0.0-20200902213428-5d25da1a8d43
)

require (
	github.com/golang/protobuf v1.4.2 // indirect
	golang.org/x/net v0.0.0-20200822124328-c89045814202 // indirect
	google.golang.org/appengine v1.6.6 // indirect
	google.golang.org/protobuf v1.25.0 // indirect
)

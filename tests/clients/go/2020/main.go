// The libraries of 2020, as vendored programs still carry them.
package main

import (
	"context"
	"net/url"

	"application"

	"cloud.google.com/go/compute/metadata"
	"golang.org/x/oauth2"
	"golang.org/x/oauth2/google"
)

const (
	cloudPlatform = "https://www.googleapis.com/auth/cloud-platform"
	// A scope of its own, so that this is no token that the proxy has from its start.
	readOnly = "https://www.googleapis.com/auth/devstorage.read_only"
	audience = "https://example.com"
)

func main() {
	application.Main(map[string]application.Library{
		"metadata": withMetadata(),
		"oauth2":   withOauth2(context.Background()),
	})
}

func withMetadata() application.Library {
	const account = "instance/service-accounts/default/"
	get := func(suffix string) func() (any, error) {
		return func() (any, error) { return metadata.Get(suffix) }
	}
	token := func(suffix string) func() (any, error) {
		return func() (any, error) { return application.TokenIn(metadata.Get(suffix)) }
	}
	scoped := account + "token?scopes=" + url.QueryEscape(cloudPlatform)
	return application.Library{
		Module: "cloud.google.com/go",
		Token: func() (string, error) {
			return application.TokenIn(metadata.Get(account + "token?scopes=" + url.QueryEscape(readOnly)))
		},
		Steps: map[string]application.Step{
			"detect":   func() (any, error) { return metadata.OnGCE(), nil },
			"project":  func() (any, error) { return metadata.ProjectID() },
			"token":    token(account + "token"),
			"account":  get(account + "email"),
			"scoped":   token(scoped),
			"refresh":  token(scoped),
			"identity": get(account + "identity?audience=" + url.QueryEscape(audience)),
		},
	}
}

func withOauth2(ctx context.Context) application.Library {
	token := func(source oauth2.TokenSource) (string, error) {
		token, err := source.Token()
		if err != nil {
			return "", err
		}
		return token.AccessToken, nil
	}
	scoped := func() (any, error) {
		found, err := google.FindDefaultCredentials(ctx, cloudPlatform)
		if err != nil {
			return nil, err
		}
		return token(found.TokenSource)
	}
	return application.Library{
		Module: "golang.org/x/oauth2",
		Token:  func() (string, error) { return token(google.ComputeTokenSource("", readOnly)) },
		Steps: map[string]application.Step{
			"project": func() (any, error) {
				found, err := google.FindDefaultCredentials(ctx, cloudPlatform)
				if err != nil {
					return nil, err
				}
				return found.ProjectID, nil
			},
			"token":   func() (any, error) { return token(google.ComputeTokenSource("")) },
			"scoped":  scoped,
			"refresh": scoped,
		},
	}
}

// The libraries of today.
package main

import (
	"context"
	"errors"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"application"

	"cloud.google.com/go/auth"
	"cloud.google.com/go/auth/credentials"
	authidtoken "cloud.google.com/go/auth/credentials/idtoken"
	"cloud.google.com/go/compute/metadata"
	"go.opentelemetry.io/contrib/detectors/gcp"
	"go.opentelemetry.io/otel/attribute"
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
		"metadata": withMetadata(context.Background()),
		"auth":     withAuth(context.Background()),
		"oauth2":   withOauth2(context.Background(), cloudPlatform),
		"detector": withDetector(context.Background()),
		"istio":    withIstio(context.Background()),
		// What these programs ask for, by this library and with these scopes.
		"prometheus":   withOauth2(context.Background(), "https://www.googleapis.com/auth/compute.readonly"),
		"cert-manager": withOauth2(context.Background(), "https://www.googleapis.com/auth/ndev.clouddns.readwrite"),
		"rclone":       withOauth2(context.Background(), "https://www.googleapis.com/auth/devstorage.full_control"),
	})
}

func withMetadata(ctx context.Context) application.Library {
	const account = "instance/service-accounts/default/"
	get := func(suffix string) func() (any, error) {
		return func() (any, error) { return metadata.GetWithContext(ctx, suffix) }
	}
	token := func(suffix string) func() (any, error) {
		return func() (any, error) { return application.TokenIn(metadata.GetWithContext(ctx, suffix)) }
	}
	scoped := account + "token?scopes=" + url.QueryEscape(cloudPlatform)
	return application.Library{
		Module: "cloud.google.com/go/compute/metadata",
		Token: func() (string, error) {
			return application.TokenIn(metadata.GetWithContext(ctx, account+"token?scopes="+url.QueryEscape(readOnly)))
		},
		Steps: map[string]application.Step{
			"detect":   func() (any, error) { return metadata.OnGCEWithContext(ctx), nil },
			"project":  func() (any, error) { return metadata.ProjectIDWithContext(ctx) },
			"token":    token(account + "token"),
			"account":  func() (any, error) { return metadata.EmailWithContext(ctx, "") },
			"scoped":   token(scoped),
			"refresh":  token(scoped),
			"identity": get(account + "identity?audience=" + url.QueryEscape(audience)),
			"universe": get("universe/universe-domain"),
			"watch":    func() (any, error) { return watch(ctx) },
		},
	}
}

// How long a value that does not change is watched before it is told again. Were the ETag that the library repeats not the
// server's own, there would be no wait.
func watch(ctx context.Context) (any, error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	enough := errors.New("told twice")
	var told []time.Time
	key := "instance/attributes/cluster-name?timeout_sec=1"
	err := metadata.SubscribeWithContext(ctx, key, func(context.Context, string, bool) error {
		told = append(told, time.Now())
		if len(told) == 2 {
			return enough
		}
		return nil
	})
	if !errors.Is(err, enough) {
		return nil, err
	}
	if waited := told[1].Sub(told[0]); waited < 900*time.Millisecond {
		return nil, errors.New("told again after " + waited.String() + ", though nothing had changed")
	}
	return true, nil
}

func withAuth(ctx context.Context) application.Library {
	detect := func(scope string) (*auth.Credentials, error) {
		return credentials.DetectDefault(&credentials.DetectOptions{Scopes: []string{scope}})
	}
	token := func(scope string) (string, error) {
		found, err := detect(scope)
		if err != nil {
			return "", err
		}
		token, err := found.Token(ctx)
		if err != nil {
			return "", err
		}
		return token.Value, nil
	}
	default_ := func(ask func(*auth.Credentials) (string, error)) func() (any, error) {
		return func() (any, error) {
			found, err := detect(cloudPlatform)
			if err != nil {
				return nil, err
			}
			return ask(found)
		}
	}
	return application.Library{
		Module: "cloud.google.com/go/auth",
		Token:  func() (string, error) { return token(readOnly) },
		Steps: map[string]application.Step{
			"project": default_(func(found *auth.Credentials) (string, error) { return found.ProjectID(ctx) }),
			"scoped":  func() (any, error) { return token(cloudPlatform) },
			"refresh": func() (any, error) { return token(cloudPlatform) },
			"identity": func() (any, error) {
				found, err := authidtoken.NewCredentials(&authidtoken.Options{Audience: audience})
				if err != nil {
					return nil, err
				}
				return found.Token(ctx)
			},
			"universe": default_(func(found *auth.Credentials) (string, error) { return found.UniverseDomain(ctx) }),
		},
	}
}

func withOauth2(ctx context.Context, scope string) application.Library {
	token := func(source oauth2.TokenSource) (string, error) {
		token, err := source.Token()
		if err != nil {
			return "", err
		}
		return token.AccessToken, nil
	}
	found := func(ask func(*google.Credentials) (string, error)) func() (any, error) {
		return func() (any, error) {
			found, err := google.FindDefaultCredentials(ctx, scope)
			if err != nil {
				return nil, err
			}
			return ask(found)
		}
	}
	scoped := found(func(found *google.Credentials) (string, error) { return token(found.TokenSource) })
	return application.Library{
		Module: "golang.org/x/oauth2",
		Token:  func() (string, error) { return token(google.ComputeTokenSource("", readOnly)) },
		Steps: map[string]application.Step{
			"project":  found(func(found *google.Credentials) (string, error) { return found.ProjectID, nil }),
			"token":    func() (any, error) { return token(google.ComputeTokenSource("")) },
			"scoped":   scoped,
			"refresh":  scoped,
			"universe": found(func(found *google.Credentials) (string, error) { return found.GetUniverseDomain() }),
		},
	}
}

// What each sidecar of Istio asks for at its start, all at once (pkg/bootstrap/platform/gcp.go). It does without the last three, which
// GKE's own server does not have.
func withIstio(ctx context.Context) application.Library {
	attribute := func(name string) func() (string, error) {
		return func() (string, error) { return metadata.InstanceAttributeValueWithContext(ctx, name) }
	}
	suppliers := []func() (string, error){
		func() (string, error) { return metadata.InstanceIDWithContext(ctx) },
		func() (string, error) { return metadata.ProjectIDWithContext(ctx) },
		func() (string, error) { return metadata.NumericProjectIDWithContext(ctx) },
		attribute("cluster-location"),
		attribute("cluster-name"),
		func() (string, error) { return metadata.InstanceNameWithContext(ctx) },
		attribute("instance-template"),
		attribute("created-by"),
	}
	return application.Library{
		Module: "cloud.google.com/go/compute/metadata",
		Steps: map[string]application.Step{
			"detect": func() (any, error) { return metadata.OnGCEWithContext(ctx), nil },
			"crawl": func() (any, error) {
				values, errs := make([]string, len(suppliers)), make([]error, len(suppliers))
				var all sync.WaitGroup
				for number, supply := range suppliers {
					all.Go(func() { values[number], errs[number] = supply() })
				}
				all.Wait()
				return values[0], errors.Join(errs[:len(errs)-3]...)
			},
		},
	}
}

// What OpenTelemetry takes the platform for.
func withDetector(ctx context.Context) application.Library {
	return application.Library{
		Module: "go.opentelemetry.io/contrib/detectors/gcp",
		Steps: map[string]application.Step{
			"platform": func() (any, error) {
				// As every pod has it.
				if err := os.Setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1"); err != nil {
					return nil, err
				}
				found, err := gcp.NewDetector().Detect(ctx)
				if err != nil {
					return nil, err
				}
				told := ""
				for _, key := range []attribute.Key{"cloud.platform", "k8s.cluster.name", "cloud.region"} {
					value, _ := found.Set().Value(key)
					told += value.AsString() + " "
				}
				return strings.TrimSpace(told), nil
			},
		},
	}
}

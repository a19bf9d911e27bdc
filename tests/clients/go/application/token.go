package application

import "encoding/json"

// TokenIn reads the metadata server's answer to a request for a token, as it was returned by a library.
func TokenIn(body string, err error) (string, error) {
	if err != nil {
		return "", err
	}
	var token struct {
		AccessToken string `json:"access_token"`
	}
	if err := json.Unmarshal([]byte(body), &token); err != nil {
		return "", err
	}
	return token.AccessToken, nil
}

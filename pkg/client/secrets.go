package client

import (
	"context"
	"net/http"
	"net/url"

	"github.com/carillonhq/carillon/pkg/task"
)

// SecretsService lists, writes and deletes secrets. No call returns values.
type SecretsService struct{ conn *connection }

// SecretRequest is the body of a request to write a secret.
type SecretRequest struct {
	Values  map[string]string `json:"values,omitempty" doc:"The values by name. The node that receives the request encrypts them; they cannot be read back."`
	Remove  []string          `json:"remove,omitempty" doc:"Names of the keys to remove."`
	Replace bool              `json:"replace,omitempty" doc:"Removes all keys that are not in values. Otherwise they stay."`
}

// CodeNoKey is the code of a problem: the node that received the request does not have the key.
const CodeNoKey = "no_key"

// List returns the secrets of a namespace ("": of all namespaces), without their values.
func (s *SecretsService) List(ctx context.Context, namespace string) ([]task.Secret, error) {
	path, err := namespacePath(namespace, "/secrets")

	return collectItems(iteratePages[task.Secret](ctx, s.conn, path, url.Values{}, pageSize, 0, err))
}

// Get returns a secret without its values. It returns task.ErrNotFound if there is none.
func (s *SecretsService) Get(ctx context.Context, namespace, name string) (task.Secret, error) {
	return s.doSecret(ctx, namespace, name, "", call{method: http.MethodGet})
}

// Set writes values of a secret, and creates the secret if it does not exist. The error has CodeNoKey if the
// server has no key to encrypt them.
func (s *SecretsService) Set(ctx context.Context, namespace, name string, r SecretRequest) (task.Secret, error) {
	return s.doSecret(ctx, namespace, name, "", call{method: http.MethodPut, body: r})
}

// Rotate encrypts a secret again with the first key of the server. It writes nothing if the secret is already
// encrypted with that key.
func (s *SecretsService) Rotate(ctx context.Context, namespace, name string) (task.Secret, error) {
	return s.doSecret(ctx, namespace, name, "/rotate", call{method: http.MethodPost})
}

// Delete deletes a secret. It returns task.ErrNotFound if there is none.
func (s *SecretsService) Delete(ctx context.Context, namespace, name string) error {
	path, err := secretPath(namespace, name, "")
	if err != nil {
		return err
	}

	return s.conn.doCall(ctx, call{method: http.MethodDelete, path: path}, nil)
}

// doSecret sends a call for one secret.
func (s *SecretsService) doSecret(ctx context.Context, namespace, name, rest string, k call) (task.Secret, error) {
	var secret task.Secret
	path, err := secretPath(namespace, name, rest)
	if err != nil {
		return secret, err
	}

	k.path = path
	err = s.conn.doCall(ctx, k, &secret)

	return secret, err
}

// secretPath returns the path of a secret, followed by rest.
func secretPath(namespace, name, rest string) (string, error) {
	if err := task.CheckName("name", name); err != nil {
		return "", err
	}

	return namespacePath(namespace, "/secrets/"+name+rest)
}

package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"

	"github.com/carillonhq/carillon/pkg/task"
)

// SecretRequest is the body that writes a secret.
type SecretRequest struct {
	Values  map[string]string `json:"values,omitempty" doc:"By name. They are encrypted by the node that answers, and never told again."`
	Remove  []string          `json:"remove,omitempty" doc:"Names whose values go."`
	Replace bool              `json:"replace,omitempty" doc:"What is not in values goes. Otherwise it stays."`
}

// CodeNoKey is the code of a problem: the node that was asked does not hold the key.
const CodeNoKey = "no_key"

// secretPath is the path of a secret.
func secretPath(namespace, name, rest string) (string, error) {
	if err := task.CheckName("name", name); err != nil {
		return "", err
	}
	return inNamespace(namespace, "/secrets/"+name+rest)
}

func (c *Client) onSecret(ctx context.Context, namespace, name, rest string, k call) (s task.Secret, err error) {
	if k.path, err = secretPath(namespace, name, rest); err == nil {
		err = c.do(ctx, k, &s)
	}
	return s, err
}

// Secrets lists the secrets of a namespace, "" for all: their names and all else
// that is told of them, which is no value.
func (c *Client) Secrets(ctx context.Context, namespace string) ([]task.Secret, error) {
	path := "/v1/secrets"
	if namespace != "" {
		var err error
		if path, err = inNamespace(namespace, "/secrets"); err != nil {
			return nil, err
		}
	}
	all := []task.Secret{}
	q := url.Values{"limit": {strconv.Itoa(pageSize)}}
	for {
		var page List[task.Secret]
		if err := c.do(ctx, call{method: http.MethodGet, path: path, query: q}, &page); err != nil {
			return nil, err
		}
		all = append(all, page.Items...)
		if page.Next == "" {
			return all, nil
		}
		q.Set("page", page.Next)
	}
}

// Secret reads what is told of a secret. task.ErrNotFound if there is none.
func (c *Client) Secret(ctx context.Context, namespace, name string) (task.Secret, error) {
	return c.onSecret(ctx, namespace, name, "", call{method: http.MethodGet})
}

// SetSecret writes values of a secret, which is made if it is not there. Code
// CodeNoKey if the node that answers has no key to do so.
func (c *Client) SetSecret(ctx context.Context, namespace, name string, r SecretRequest) (task.Secret, error) {
	return c.onSecret(ctx, namespace, name, "", call{method: http.MethodPut, body: r})
}

// RotateSecret encrypts a secret anew, under the first key of the node that
// answers. Nothing is written if it is encrypted under that already.
func (c *Client) RotateSecret(ctx context.Context, namespace, name string) (task.Secret, error) {
	return c.onSecret(ctx, namespace, name, "/rotate", call{method: http.MethodPost})
}

// DeleteSecret deletes a secret. task.ErrNotFound if there is none.
func (c *Client) DeleteSecret(ctx context.Context, namespace, name string) error {
	path, err := secretPath(namespace, name, "")
	if err != nil {
		return err
	}
	return c.do(ctx, call{method: http.MethodDelete, path: path}, nil)
}

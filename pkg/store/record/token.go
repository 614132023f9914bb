package record

import (
	"github.com/carillonhq/carillon/pkg/task"
)

// Token is the record of an API token. It contains only a hash of the secret.
type Token struct {
	Hash      string    `json:"hash"` // SHA-256 of the secret in hexadecimal
	Role      string    `json:"role"` // what the token allows
	Who       string    `json:"who"`  // the user in records of changes
	CreatedAt task.Time `json:"created_at"`
	Until     task.Time `json:"until,omitzero"` // when it expires; zero: never
}

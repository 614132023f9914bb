package record

import (
	"github.com/carillonhq/carillon/pkg/task"
)

// Token is an API token. The secret itself is nowhere in etcd.
type Token struct {
	Hash      string    `json:"hash"` // SHA-256 of the secret, hexadecimal
	Role      string    `json:"role"`
	Who       string    `json:"who"`
	CreatedAt task.Time `json:"created_at"`
	Until     task.Time `json:"until,omitzero"`
}

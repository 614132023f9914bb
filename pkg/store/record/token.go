package record

import (
	"github.com/carillonhq/carillon/pkg/task"
)

// Token is the record of an API token. The secret itself is nowhere in etcd.
type Token struct {
	task.Token
	Hash string `json:"hash"` // SHA-256 of the secret, hexadecimal
}

// Fence is the value of the fence's key. Only the key's mod revision matters; the value
// limits how often the fence may be written.
type Fence struct {
	Writes []FenceWrite `json:"writes"` // the last ones, the newest last; at most FenceWrites
}

// FenceWrite says when the fence was written, and on whose behalf.
type FenceWrite struct {
	At task.Time `json:"at"`
	By string    `json:"by,omitempty"` // the subject; absent: the node itself
}

// Limits of how often the fence may be written within a second. Each write of it makes every write of the API that is
// under way lose once and be authorised again: without a limit, one administrator's loop would keep all others from
// writing. Callers with grant on access may use all of FenceWrites. The others leave FenceWritesReserved of them, so that
// rights can always be taken away from them, and each of their subjects has FenceWritesOfSubject.
const (
	FenceWrites          = 10
	FenceWritesReserved  = 2
	FenceWritesOfSubject = 3
)

package audit

import (
	"fmt"

	"go.etcd.io/etcd/api/v3/mvccpb"
)

// lookAtSecret judges a secret by all that can be seen without a key.
func (a *audit) lookAtSecret(e *mvccpb.KeyValue) error {
	ns, name, ok := a.keys.ParseSecret(string(e.Key))
	if !ok {
		a.strange(e)
		return nil
	}
	a.unleased(e)
	if _, err := a.keys.DecodeSecret(e); err != nil {
		a.suspect(kindSecret.of(fmt.Sprintf("secret %s/%s cannot be read", ns, name), string(e.Key)), seen(e))
	}
	return nil
}

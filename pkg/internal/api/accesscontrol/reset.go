package accesscontrol

import (
	"net/http"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/authority"
	"github.com/carillonhq/carillon/pkg/task"
)

// bootstrapName is the name of the service that the first token of a cluster acts as, and of its binding.
const bootstrapName = "bootstrap"

// resetAccess gives the cluster an administrator again. Only root on the host of this node may call it, because root
// could also read the node's credentials for etcd. Each step can be repeated, so a failed reset can be called again.
func (h *Handlers) resetAccess(c *httpapi.Call) (httpapi.Answer, error) {
	if httpapi.CallerOf(c.Context()).Who != access.KindUnix+":uid=0" {
		return httpapi.Answer{}, httpapi.Fail(http.StatusForbidden, client.CodeForbidden, "only root on the host of a node may reset access, over the node's unix socket and without a token").
			WithHint("run carillon access reset as root on that host")
	}

	const reason = "carillon access reset"
	h.Log.Warn("access is being reset by root on this host")

	subject := access.KindService + ":" + bootstrapName
	need := access.Need{Verb: access.Grant, Kind: access.Access}

	err := h.change(c, func(v *authority.View, rights *httpapi.Rights) error {
		if !v.Disabled(subject) {
			return nil
		}
		if err := rights.Require(need); err != nil {
			return err
		}

		rights.Because(reason)

		return h.Store.As(rights).EnableSubject(c.Context(), subject, v.Mod(h.Store.Keys().DisabledSubject(subject)), h.Now())
	})
	if err != nil {
		return httpapi.Answer{}, err
	}

	err = h.change(c, func(v *authority.View, rights *httpapi.Rights) error {
		if err := rights.Require(need); err != nil {
			return err
		}

		now := h.Now.Stamp()
		b := task.Binding{
			Name: bootstrapName, Role: access.RoleAdmin, RoleUID: access.BuiltInUID, Subjects: []string{subject}, Cluster: true, Reason: reason,
			CreatedAt: now, CreatedBy: c.Actor(), UpdatedAt: now, UpdatedBy: c.Actor(),
		}
		old, _ := v.Binding(bootstrapName)
		rights.Because(reason)
		_, err := h.Store.As(rights).PutBinding(c.Context(), old.Revision, b, h.Now())

		return httpapi.About("binding "+bootstrapName, err)
	})
	if err != nil {
		return httpapi.Answer{}, err
	}

	secret, t := authority.NewSecret()
	t.Subject, t.Reason, t.CreatedAt, t.CreatedBy = subject, reason, h.Now.Stamp(), c.Actor()
	err = h.change(c, func(_ *authority.View, rights *httpapi.Rights) error {
		if err := rights.Require(need); err != nil {
			return err
		}

		rights.Because(reason)

		return httpapi.About(t.ID, h.Store.As(rights).CreateToken(c.Context(), t))
	})
	if err != nil {
		return httpapi.Answer{}, err
	}

	h.settle(c, func(v *authority.View) bool { return v.Created(t.ID) > 0 })
	h.Log.Warn("access was reset: created a token for a new administrator", zap.String("subject", subject), zap.String("token", t.ID))

	return httpapi.Answer{Status: http.StatusCreated, Body: client.NewToken{Token: t.Token, Secret: secret}}, nil
}

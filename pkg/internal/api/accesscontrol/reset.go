package accesscontrol

import (
	"net/http"
	"reflect"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/authority"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// resetHandlers give the cluster an administrator again.
type resetHandlers struct {
	*records
	log *zap.Logger
}

const resetAbout = "Creates a new token of service:bootstrap that does not expire, and gives this subject the role admin in the cluster. Only root on the node's host may do this, over the node's unix socket and without a token."

// Routes returns the operations that reset access.
func (h *resetHandlers) Routes() []*httpapi.Operation {
	return []*httpapi.Operation{
		{ID: "reset-access", Method: http.MethodPost, Path: "/v1/access/reset", Tag: "access", Summary: "Create a new administrator, as root on the node's host", Description: resetAbout,
			Writes: true, Status: 201, Answer: reflect.TypeFor[client.NewToken](), Errors: []int{409, 429}, Handler: httpapi.NoQuery(h.resetAccess)},
	}
}

// bootstrapName is the name of the service that the first token of a cluster acts as, and of its binding.
const bootstrapName = "bootstrap"

// resetAccess gives the cluster an administrator again. Only root on the host of this node may call it, because root
// could also read the node's credentials for etcd. Each step can be repeated, so a failed reset can be called again.
func (h *resetHandlers) resetAccess(c *httpapi.Call) (httpapi.Answer, error) {
	if httpapi.CallerOf(c.Context()).Who != access.KindUnix+":uid=0" {
		return httpapi.Answer{}, httpapi.Fail(http.StatusForbidden, client.CodeForbidden, "only root on the host of a node may reset access, over the node's unix socket and without a token").
			WithHint("run carillon access reset as root on that host")
	}

	const reason = "carillon access reset"
	h.log.Warn("access is being reset by root on this host")

	subject := access.KindService + ":" + bootstrapName
	need := access.Need{Verb: access.Grant, Kind: access.Access}

	err := h.changeRecords(c, func(v *authority.View, rights *httpapi.Rights) error {
		if !v.Disabled(subject) {
			return nil
		}
		if err := rights.Require(need); err != nil {
			return err
		}

		rights.Because(reason)

		return h.store.As(rights).EnableSubject(c.Context(), subject, v.Mod(h.store.Keys().DisabledSubject(subject)), h.now())
	})
	if err != nil {
		return httpapi.Answer{}, err
	}

	err = h.changeRecords(c, func(v *authority.View, rights *httpapi.Rights) error {
		if err := rights.Require(need); err != nil {
			return err
		}

		now := h.now.Stamp()
		b := task.Binding{
			Name: bootstrapName, Role: access.RoleAdmin, RoleUID: access.BuiltInUID, Subjects: []string{subject}, Cluster: true, Reason: reason,
			CreatedAt: now, CreatedBy: c.Actor(), UpdatedAt: now, UpdatedBy: c.Actor(),
		}
		old, is := v.Binding(bootstrapName)
		rights.Because(reason)
		rights.Describe(describeBinding(existing(is, &old), &b))
		_, err := h.store.As(rights).PutBinding(c.Context(), old.Revision, b, h.now())

		return httpapi.About("binding "+bootstrapName, err)
	})
	if err != nil {
		return httpapi.Answer{}, err
	}

	secret, t := authority.NewSecret()
	t.Subject, t.Reason, t.CreatedAt, t.CreatedBy = subject, reason, h.now.Stamp(), c.Actor()
	err = h.changeRecords(c, func(_ *authority.View, rights *httpapi.Rights) error {
		if err := rights.Require(need); err != nil {
			return err
		}

		rights.Because(reason)
		rights.Describe(store.DescribeToken(nil, &t.Token))

		return httpapi.About(t.ID, h.store.As(rights).CreateToken(c.Context(), t))
	})
	if err != nil {
		return httpapi.Answer{}, err
	}

	h.awaitView(c, func(v *authority.View) bool { return v.Created(t.ID) > 0 })
	h.log.Warn("access was reset: created a token for a new administrator", zap.String("subject", subject), zap.String("token", t.ID))

	return httpapi.Answer{Status: http.StatusCreated, Body: client.NewToken{Token: t.Token, Secret: secret}}, nil
}

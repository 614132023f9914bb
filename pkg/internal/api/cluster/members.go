package cluster

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/store/etcdadmin"
	"github.com/carillonhq/carillon/pkg/task"
)

// listMembers serves the members of etcd, sorted by name.
func (h *Handlers) listMembers(c *httpapi.Call) (httpapi.Answer, error) {
	list := []client.EtcdMember{}
	for _, m := range h.Store.Members(c.Context(), etcdTimeout) {
		list = append(list, showMember(m))
	}

	slices.SortStableFunc(list, func(a, b client.EtcdMember) int { return strings.Compare(a.Name, b.Name) })

	return httpapi.All(list)
}

// addMember serves the addition of a member.
func (h *Handlers) addMember(c *httpapi.Call) (httpapi.Answer, error) {
	var ask client.AddMemberRequest
	if err := c.Decode(&ask); err != nil {
		return httpapi.Answer{}, err
	}
	if err := task.CheckName("name", ask.Name); err != nil {
		return httpapi.Answer{}, err
	}

	u, err := url.Parse(ask.PeerURL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.Port() == "" || u.Path != "" || u.User != nil {
		return httpapi.Answer{}, task.Invalid(task.CodeBadValue, "peer_url", "%s is not a URL such as https://10.0.0.4:2380", task.Quote(ask.PeerURL))
	}

	err = c.Rights().RecordAround(c.Context(), h.Store, memberObject(ask.Name, "put"), func() error {
		return h.Store.AddMember(c.Context(), ask.Name, ask.PeerURL)
	})
	if err != nil {
		return httpapi.Answer{}, memberFailure(err)
	}

	h.noteChange(c, fmt.Sprintf("etcd member %s added at %s", ask.Name, ask.PeerURL))

	return h.answerMembers(c, http.StatusCreated, ask.Name, ask.PeerURL), nil
}

// removeMember serves the removal of a member.
func (h *Handlers) removeMember(c *httpapi.Call) (httpapi.Answer, error) {
	name := c.Request.PathValue("member")
	if err := task.CheckName("member", name); err != nil {
		return httpapi.Answer{}, err
	}

	err := c.Rights().RecordAround(c.Context(), h.Store, memberObject(name, "delete"), func() error {
		return h.Store.RemoveMember(c.Context(), name)
	})
	if err != nil {
		return httpapi.Answer{}, memberFailure(err)
	}

	h.noteChange(c, fmt.Sprintf("etcd member %s removed", name))

	return h.answerMembers(c, http.StatusOK, name, ""), nil
}

func memberObject(name, change string) []task.AuditObject {
	return []task.AuditObject{{Kind: "member", Name: name, Change: change}}
}

// answerMembers returns the members after a change. added is the peer URL of a new member; etcd does not know its
// name until it has started.
func (h *Handlers) answerMembers(c *httpapi.Call, status int, name, added string) httpapi.Answer {
	out := client.MemberChange{Name: name}
	var list []string
	for _, m := range h.Store.Members(c.Context(), etcdTimeout) {
		if m.Peer == added && added != "" {
			m.Name = name
		}
		list = append(list, m.Name+"="+m.Peer)
	}

	slices.Sort(list)
	out.InitialCluster, out.Members = strings.Join(list, ","), len(list)
	if len(list)%2 == 0 {
		out.WarningCode = task.WarnEvenMembers
		out.Warning = fmt.Sprintf("%d members tolerate no more failures than %d; use an odd number", len(list), len(list)-1)
	}

	return httpapi.Answer{Status: status, Body: out}
}

// memberFailure converts an error of the store to a failure, with the store's text. A conflict here is not a
// changed record, so a retry would not help.
func memberFailure(err error) error {
	switch {
	case errors.Is(err, task.ErrExists):
		return httpapi.Fail(http.StatusConflict, client.CodeExists, "%s", err)
	case errors.Is(err, etcdadmin.ErrNotEmbedded), errors.Is(err, etcdadmin.ErrRefused):
		return httpapi.Fail(http.StatusConflict, client.CodeConflict, "%s", err)
	case errors.Is(err, task.ErrUnavailable):
		return httpapi.Fail(http.StatusServiceUnavailable, client.CodeUnavailable, "%s", err).
			WithHint("members cannot be changed while more than half of them are unavailable").Because(err)
	}

	return err
}

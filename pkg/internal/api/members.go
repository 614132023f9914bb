package api

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// listMembers serves the members of etcd, by name.
func (h *clusterHandlers) listMembers(c *call) (answer, error) {
	list := []client.EtcdMember{}
	for _, m := range h.Store.Members(c.ctx(), etcdTimeout) {
		list = append(list, member(m))
	}
	slices.SortStableFunc(list, func(a, b client.EtcdMember) int { return strings.Compare(a.Name, b.Name) })
	return all(list)
}

// addMember serves the addition of one.
func (h *clusterHandlers) addMember(c *call) (answer, error) {
	var ask client.AddMemberRequest
	if err := c.decode(&ask); err != nil {
		return answer{}, err
	}
	if err := task.CheckName("name", ask.Name); err != nil {
		return answer{}, err
	}
	u, err := url.Parse(ask.PeerURL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.Port() == "" || u.Path != "" || u.User != nil {
		return answer{}, task.Invalid(task.CodeBadValue, "peer_url", "%s is not a URL such as https://10.0.0.4:2380", task.Quote(ask.PeerURL))
	}
	if err := h.Store.AddMember(c.ctx(), ask.Name, ask.PeerURL); err != nil {
		return answer{}, memberFailure(err)
	}
	h.noteChange(c, fmt.Sprintf("etcd member %s added at %s", ask.Name, ask.PeerURL))
	return h.changed(c, http.StatusCreated, ask.Name, ask.PeerURL), nil
}

// removeMember serves the removal of one.
func (h *clusterHandlers) removeMember(c *call) (answer, error) {
	name := c.r.PathValue("member")
	if err := task.CheckName("member", name); err != nil {
		return answer{}, err
	}
	if err := h.Store.RemoveMember(c.ctx(), name); err != nil {
		return answer{}, memberFailure(err)
	}
	h.noteChange(c, fmt.Sprintf("etcd member %s removed", name))
	return h.changed(c, http.StatusOK, name, ""), nil
}

// changed says what the members are now; added is the URL of the one that is new.
func (h *clusterHandlers) changed(c *call, status int, name, added string) answer {
	out := client.MemberChange{Name: name}
	var list []string
	for _, m := range h.Store.Members(c.ctx(), etcdTimeout) {
		if m.Peer == added && added != "" {
			m.Name = name
		}
		list = append(list, m.Name+"="+m.Peer)
	}
	slices.Sort(list)
	out.InitialCluster, out.Members = strings.Join(list, ","), len(list)
	if len(list)%2 == 0 {
		out.Warning = fmt.Sprintf("an even number of members, %d, survives the loss of no more of them than %d would", len(list), len(list)-1)
	}
	return answer{status: status, body: out}
}

// memberFailure says in the store's words what is in the way: it is no change of
// a record, for which trying again would help.
func memberFailure(err error) error {
	switch {
	case errors.Is(err, task.ErrExists):
		return fail(http.StatusConflict, client.CodeExists, "%s", err)
	case errors.Is(err, store.ErrNotEmbedded), errors.Is(err, store.ErrRefused):
		return fail(http.StatusConflict, client.CodeConflict, "%s", err)
	case errors.Is(err, task.ErrUnavailable):
		return fail(http.StatusServiceUnavailable, client.CodeUnavailable, "%s", err).
			withHint("members cannot be changed while more than half of them are away").because(err)
	}
	return err
}

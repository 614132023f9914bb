package client

import (
	"context"
	"net/http"

	"github.com/carillonhq/carillon/pkg/task"
)

// MembersService reads the members of etcd, and changes those of an embedded etcd.
type MembersService struct{ conn *connection }

const membersPath = "/v1/cluster/members"

// List returns the members of etcd.
func (s *MembersService) List(ctx context.Context) ([]EtcdMember, error) {
	return getItems[EtcdMember](ctx, s.conn, membersPath)
}

// Add adds a member to the embedded etcd. The agent of that name joins when it starts
// with the MemberChange.InitialCluster that Add returns.
func (s *MembersService) Add(ctx context.Context, m AddMemberRequest) (MemberChange, error) {
	var change MemberChange
	err := s.conn.doCall(ctx, call{method: http.MethodPost, path: membersPath, body: m}, &change)

	return change, err
}

// Remove removes a member from the embedded etcd, by its name or its id.
func (s *MembersService) Remove(ctx context.Context, name string) (MemberChange, error) {
	var change MemberChange

	if err := task.CheckName("member", name); err != nil {
		return change, err
	}

	err := s.conn.doCall(ctx, call{method: http.MethodDelete, path: membersPath + "/" + name}, &change)

	return change, err
}

package client

import (
	"context"
	"net/http"

	"github.com/carillonhq/carillon/pkg/task"
)

const membersPath = "/v1/cluster/members"

// Members are the members of etcd.
func (c *Client) Members(ctx context.Context) ([]EtcdMember, error) {
	return getAll[EtcdMember](ctx, c, membersPath)
}

// AddMember adds a member to the embedded etcd.
func (c *Client) AddMember(ctx context.Context, m AddMemberRequest) (MemberChange, error) {
	var ch MemberChange
	err := c.do(ctx, call{method: http.MethodPost, path: membersPath, body: m}, &ch)
	return ch, err
}

// RemoveMember removes one, by its name or its id.
func (c *Client) RemoveMember(ctx context.Context, name string) (MemberChange, error) {
	var ch MemberChange
	if err := task.CheckName("member", name); err != nil {
		return ch, err
	}
	err := c.do(ctx, call{method: http.MethodDelete, path: membersPath + "/" + name}, &ch)
	return ch, err
}

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

const formatPath = "/v1/cluster/format"

// Format is the format of the cluster's records.
func (c *Client) Format(ctx context.Context) (FormatStatus, error) {
	var f FormatStatus
	err := c.do(ctx, call{method: http.MethodGet, path: formatPath}, &f)
	return f, err
}

// SetFormat asks for an older format of records, or, with 0, for the newest that
// is possible. An older one is in force when its Format says so, which may take
// as long as the runs that are active.
func (c *Client) SetFormat(ctx context.Context, format int) (FormatStatus, error) {
	var f FormatStatus
	err := c.do(ctx, call{method: http.MethodPut, path: formatPath, body: FormatRequest{Format: format}}, &f)
	return f, err
}

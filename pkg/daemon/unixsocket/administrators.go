package unixsocket

import (
	"context"
	"errors"
	"net"
	"os"
	"os/user"
	"strconv"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/internal/api"
	"github.com/carillonhq/carillon/pkg/internal/connlimit"
	"github.com/carillonhq/carillon/pkg/task"
)

// Administrators determines which users of this host need no token on the unix socket.
type Administrators struct {
	gid     uint32 // the number of task.AdminGroup
	noGroup bool   // the host has no such group
}

// LookupAdministrators looks up the group. If that fails, only root and the daemon's user need no token.
func LookupAdministrators(log *zap.Logger) Administrators {
	group, err := user.LookupGroup(task.AdminGroup)
	if err != nil {
		var unknown user.UnknownGroupError
		if !errors.As(err, &unknown) {
			log.Warn("cannot look up the group of the unix socket; its members need a token", zap.String("group", task.AdminGroup), zap.Error(err))
		}
		return Administrators{noGroup: true}
	}

	gid, err := strconv.ParseUint(group.Gid, 10, 32)
	if err != nil {
		return Administrators{noGroup: true}
	}

	return Administrators{gid: uint32(gid)}
}

// Peer is the user who has opened a connection to the unix socket.
type Peer struct {
	UID     uint32
	Trusted bool // the user needs no token
	// Refused is why the user needs a token, although their rights on this host are those of a trusted user; "" otherwise.
	Refused string
}

// Peer returns the user who has opened a connection to the unix socket, and false if c is not such a connection.
// Users who need no token are root and the daemon's own user, because they can do everything that the daemon
// can, and the members of the group, because the host's administrator has given them the same.
//
// A process of a task is never trusted, whatever its user: those who may change the task would be administrators of the
// cluster.
func (a Administrators) Peer(c net.Conn) (p Peer, ok bool) {
	if p.UID, ok = connlimit.PeerUID(c); !ok {
		return p, false
	}

	own := p.UID == 0 || int(p.UID) == os.Geteuid()
	if !own && (a.noGroup || !connlimit.PeerInGroup(c, a.gid)) {
		return p, true
	}

	if err := checkNoAttempt(c); err != nil {
		p.Refused = err.Error()
		return p, true
	}

	p.Trusted = true

	return p, true
}

// ConnContext adds the connection to the context of its requests and, if a user of this host who needs no token
// has opened it, that user.
func (a Administrators) ConnContext(ctx context.Context, c net.Conn) context.Context {
	ctx = connlimit.Context(ctx, c)

	p, ok := a.Peer(connlimit.Inner(c))
	switch {
	case !ok:
	case p.Trusted:
		ctx = api.WithTrustedUser(ctx, p.UID)
	case p.Refused != "":
		ctx = api.WithRefusedUser(ctx, p.Refused)
	}

	return ctx
}

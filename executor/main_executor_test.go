package executor

import (
	"testing"

	"github.com/carillonhq/carillon/executor/guardian/guardiantest"
	"github.com/carillonhq/carillon/pkg/kv/kvtest"
)

// The test binary plays guardians, too.
func TestMain(m *testing.M) {
	guardiantest.Main()
	kvtest.Main(m)
}

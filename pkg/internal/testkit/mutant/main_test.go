package mutant_test

import (
	"testing"

	"github.com/carillonhq/carillon/pkg/kv/kvtest"
)

func TestMain(m *testing.M) { kvtest.Main(m) }

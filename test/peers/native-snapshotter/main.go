// native-snapshotter is a plugin for Velero in Go. Its snapshotters example.io/native and example.io/other take snapshots of volumes that are
// directories: DIRECTORY/volumes/ID of the configuration's `directory` is copied to DIRECTORY/snapshots/ID. Both are the same; a backup takes only
// one location of each provider. What they are asked is noted in DIRECTORY/asked.jsonl. The configuration's `fault` is CALL=HOW: the call fails,
// hangs, ends the process or answers with more than a Go server takes. example.io/large is a backup item action that makes ConfigMaps large.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/sirupsen/logrus"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	api "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"github.com/vmware-tanzu/velero/pkg/plugin/framework"
	"github.com/vmware-tanzu/velero/pkg/plugin/velero"
)

// More than the 4 MiB that a gRPC server in Go takes.
const large = 5 << 20

func main() {
	framework.NewServer().
		BindFlags(pflag.CommandLine).
		RegisterVolumeSnapshotter("example.io/native", newSnapshotter).
		RegisterVolumeSnapshotter("example.io/other", newSnapshotter).
		RegisterBackupItemAction("example.io/large", newGrower).
		Serve()
}

type snapshotter struct {
	log       logrus.FieldLogger
	directory string
	call, how string
	// Which volume or snapshot the fault is of; of all where it is empty.
	of string
	mu sync.Mutex
}

func newSnapshotter(log logrus.FieldLogger) (any, error) { return &snapshotter{log: log}, nil }

func (s *snapshotter) Init(config map[string]string) error {
	// Velero's own check, which all plugins of Velero's make.
	if err := framework.ValidateVolumeSnapshotterConfigKeys(config, "directory", "fault", "faultOf", "credentialsFile"); err != nil {
		return err
	}
	s.directory = config["directory"]
	if s.directory == "" {
		return errors.New("the configuration names no directory")
	}
	s.call, s.how, _ = strings.Cut(config["fault"], "=")
	s.of = config["faultOf"]
	return s.asked("Init", "", map[string]any{"config": config, "credentials": credentials(config)})
}

func credentials(config map[string]string) string {
	text, err := os.ReadFile(config["credentialsFile"])
	if err != nil {
		return ""
	}
	return string(text)
}

// asked notes a call and brings about its fault.
func (s *snapshotter) asked(call, of string, what map[string]any) error {
	what["call"] = call
	what["pid"] = os.Getpid()
	line, err := json.Marshal(what)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := os.MkdirAll(s.directory, 0o755); err != nil {
		return err
	}
	file, err := os.OpenFile(filepath.Join(s.directory, "asked.jsonl"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer file.Close()
	if _, err := file.Write(append(line, '\n')); err != nil {
		return err
	}
	if call != s.call || (s.of != "" && s.of != of) {
		return nil
	}
	switch s.how {
	case "error":
		return fmt.Errorf("the provider refuses %s", call)
	case "hang":
		s.mu.Unlock()
		<-make(chan struct{})
	case "crash":
		os.Exit(3)
	case "panic":
		panic("the plugin has a bug in " + call)
	}
	return nil
}

// answer is the one given, or a large one where this is the fault.
func (s *snapshotter) answer(call, given string) string {
	if call == s.call && s.how == "large" {
		return given + strings.Repeat("x", large)
	}
	return given
}

func (s *snapshotter) volume(id string) string   { return filepath.Join(s.directory, "volumes", id) }
func (s *snapshotter) snapshot(id string) string { return filepath.Join(s.directory, "snapshots", id) }

func (s *snapshotter) GetVolumeID(pv runtime.Unstructured) (string, error) {
	path, _, err := unstructured.NestedString(pv.UnstructuredContent(), "spec", "hostPath", "path")
	if err != nil {
		return "", err
	}
	id := ""
	if filepath.Dir(path) == filepath.Join(s.directory, "volumes") {
		id = filepath.Base(path)
	}
	if err := s.asked("GetVolumeID", id, map[string]any{"path": path}); err != nil {
		return "", err
	}
	return id, nil
}

func (s *snapshotter) SetVolumeID(pv runtime.Unstructured, id string) (runtime.Unstructured, error) {
	if err := s.asked("SetVolumeID", id, map[string]any{"volume": id}); err != nil {
		return nil, err
	}
	content := pv.UnstructuredContent()
	if err := unstructured.SetNestedField(content, s.volume(id), "spec", "hostPath", "path"); err != nil {
		return nil, err
	}
	if s.call == "SetVolumeID" && s.how == "large" {
		if err := unstructured.SetNestedField(content, strings.Repeat("x", large), "metadata", "annotations", "example.io/large"); err != nil {
			return nil, err
		}
	}
	return &unstructured.Unstructured{Object: content}, nil
}

// A volume may have a file `.iops`.
func (s *snapshotter) GetVolumeInfo(id, zone string) (string, *int64, error) {
	if err := s.asked("GetVolumeInfo", id, map[string]any{"volume": id, "zone": zone}); err != nil {
		return "", nil, err
	}
	text, err := os.ReadFile(filepath.Join(s.volume(id), ".iops"))
	if err != nil {
		return s.answer("GetVolumeInfo", "directory"), nil, nil
	}
	iops, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	return s.answer("GetVolumeInfo", "directory"), &iops, err
}

func (s *snapshotter) CreateSnapshot(id, zone string, tags map[string]string) (string, error) {
	err := s.asked("CreateSnapshot", id, map[string]any{"volume": id, "zone": zone, "tags": tags})
	if err != nil {
		return "", err
	}
	made := "snap-" + id + "-" + tags["velero.io/backup"]
	if err := os.CopyFS(s.snapshot(made), os.DirFS(s.volume(id))); err != nil {
		return "", err
	}
	s.log.WithField("snapshot", made).Info("The volume was copied")
	return s.answer("CreateSnapshot", made), nil
}

func (s *snapshotter) CreateVolumeFromSnapshot(id, kind, zone string, iops *int64) (string, error) {
	err := s.asked("CreateVolumeFromSnapshot", id, map[string]any{"snapshot": id, "type": kind, "zone": zone, "iops": iops})
	if err != nil {
		return "", err
	}
	made := "restored-" + id
	return made, os.CopyFS(s.volume(made), os.DirFS(s.snapshot(id)))
}

func (s *snapshotter) DeleteSnapshot(id string) error {
	if err := s.asked("DeleteSnapshot", id, map[string]any{"snapshot": id}); err != nil {
		return err
	}
	return os.RemoveAll(s.snapshot(id))
}

// grower adds as many MiB to a ConfigMap as its annotation says.
type grower struct{}

func newGrower(logrus.FieldLogger) (any, error) { return grower{}, nil }

func (grower) AppliesTo() (velero.ResourceSelector, error) {
	return velero.ResourceSelector{IncludedResources: []string{"configmaps"}, LabelSelector: "example.io/large"}, nil
}

func (grower) Execute(item runtime.Unstructured, _ *api.Backup) (runtime.Unstructured, []velero.ResourceIdentifier, error) {
	object := &unstructured.Unstructured{Object: item.UnstructuredContent()}
	mib, err := strconv.Atoi(object.GetAnnotations()["example.io/grow-mib"])
	if err != nil {
		return item, nil, nil
	}
	text := strings.Repeat("x", mib<<20)
	return object, nil, unstructured.SetNestedField(object.Object, text, "data", "grown")
}

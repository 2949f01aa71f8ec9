// archive-client reads what is stored of a backup or restore with Velero's own packages, from a directory whose files are the objects of a
// bucket: `archive-client DIRECTORY read BACKUP` prints all of it as one line of JSON, with the items of the tarball as Velero's own
// extractor unpacks them; `restore NAME` what there is of a restore; `list`, `valid`, `delete NAME` do what Velero's sync, check of a
// location and deletion do.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"time"

	"github.com/sirupsen/logrus"

	api "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"github.com/vmware-tanzu/velero/pkg/archive"
	"github.com/vmware-tanzu/velero/pkg/persistence"
	"github.com/vmware-tanzu/velero/pkg/plugin/velero"
	"github.com/vmware-tanzu/velero/pkg/util/filesystem"
)

type directory struct{ root string }

func (d directory) path(key string) string       { return filepath.Join(d.root, key) }
func (d directory) Init(map[string]string) error { return nil }
func (d directory) PutObject(_, key string, body io.Reader) error {
	return fmt.Errorf("nothing is put here: %s", key)
}
func (d directory) ObjectExists(_, key string) (bool, error) {
	_, err := os.Stat(d.path(key))
	if os.IsNotExist(err) {
		return false, nil
	}
	return err == nil, err
}
func (d directory) GetObject(_, key string) (io.ReadCloser, error) { return os.Open(d.path(key)) }
func (d directory) ListObjects(_, prefix string) ([]string, error) {
	var keys []string
	err := filepath.WalkDir(d.root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		key, _ := filepath.Rel(d.root, path)
		if strings.HasPrefix(key, prefix) {
			keys = append(keys, key)
		}
		return nil
	})
	return keys, err
}
func (d directory) ListCommonPrefixes(_, prefix, delimiter string) ([]string, error) {
	keys, err := d.ListObjects("", prefix)
	seen := map[string]bool{}
	for _, key := range keys {
		if name, _, found := strings.Cut(strings.TrimPrefix(key, prefix), delimiter); found {
			seen[prefix+name+delimiter] = true
		}
	}
	var prefixes []string
	for one := range seen {
		prefixes = append(prefixes, one)
	}
	sort.Strings(prefixes)
	return prefixes, err
}
func (d directory) DeleteObject(_, key string) error { return os.Remove(d.path(key)) }
func (d directory) CreateSignedURL(_, key string, _ time.Duration) (string, error) {
	return "file://" + d.path(key), nil
}
func (d directory) GetObjectStore(string) (velero.ObjectStore, error) { return d, nil }

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
func got[T any](value T, err error) T {
	check(err)
	return value
}

func main() {
	root, verb, name := os.Args[1], os.Args[2], strings.Join(os.Args[3:], "")
	log := logrus.New()
	log.SetOutput(io.Discard)
	location := &api.BackupStorageLocation{}
	location.Spec.Provider = "directory"
	location.Spec.ObjectStorage = &api.ObjectStorageLocation{Bucket: "b"}
	store := got(persistence.NewObjectBackupStoreGetter(nil).Get(location, directory{root}, log))
	result := map[string]any{}
	switch verb {
	case "list":
		result["backups"] = got(store.ListBackups())
	case "valid":
		check(store.IsValid())
	case "delete":
		check(store.DeleteBackup(name))
	case "restore":
		result["itemOperations"] = got(store.GetRestoreItemOperations(name))
		result["results"] = got(store.GetRestoreResults(name))
		result["resourceList"] = got(store.GetRestoredResourceList(name))
	case "read":
		result["exists"] = got(store.BackupExists("b", name))
		result["metadata"] = got(store.GetBackupMetadata(name))
		result["itemOperations"] = got(store.GetBackupItemOperations(name))
		result["volumeInfos"] = got(store.GetBackupVolumeInfos(name))
		result["volumeSnapshots"] = got(store.GetBackupVolumeSnapshots(name))
		result["podVolumeBackups"] = got(store.GetPodVolumeBackups(name))
		contents := got(store.GetBackupContents(name))
		extracted := got(archive.NewExtractor(log, filesystem.NewFileSystem()).UnzipAndExtractBackup(contents))
		defer os.RemoveAll(extracted)
		version := got(os.ReadFile(filepath.Join(extracted, "metadata", "version")))
		result["version"] = string(version)
		items := map[string]any{}
		for resource, found := range got(archive.NewParser(log, filesystem.NewFileSystem()).Parse(extracted)) {
			items[resource] = found.ItemsByNamespace
		}
		result["items"] = items
	default:
		check(fmt.Errorf("no such verb: %s", verb))
	}
	fmt.Println(string(got(json.Marshal(result))))
}

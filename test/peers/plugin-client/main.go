// plugin-client is a host of plugins made of Velero's own packages: `plugin-client server FLAGS...` discovers the plugins in
// $PLUGIN_DIR as Velero's server does, with FLAGS handed on to them, and then does what it is told by lines of JSON on stdin.
// Each gets one line of JSON as answer. The log, with what plugins log, goes to stderr as JSON.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"github.com/sirupsen/logrus"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	api "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"github.com/vmware-tanzu/velero/pkg/plugin/clientmgmt"
	"github.com/vmware-tanzu/velero/pkg/plugin/clientmgmt/process"
	"github.com/vmware-tanzu/velero/pkg/plugin/framework"
	"github.com/vmware-tanzu/velero/pkg/plugin/framework/common"
	"github.com/vmware-tanzu/velero/pkg/plugin/velero"
)

type request struct {
	Op             string
	Name           string
	OperationID    string
	Item           map[string]any
	ItemFromBackup map[string]any
	Backup         *api.Backup
	Restore        *api.Restore
}

type answer struct {
	Error  string `json:"error,omitempty"`
	Result any    `json:"result,omitempty"`
}

type host struct {
	registry process.Registry
	manager  clientmgmt.Manager
	log      *logrus.Logger
}

func main() {
	if len(os.Args) > 1 && os.Args[1] == "run-plugins" {
		// What is built into a server comes first; there is nothing here.
		framework.NewServer().BindFlags(pflag.CommandLine).Serve()
		return
	}
	log := logrus.New()
	log.SetOutput(os.Stderr)
	log.SetFormatter(&logrus.JSONFormatter{})
	log.SetLevel(logrus.DebugLevel)
	registry := process.NewRegistry(os.Getenv("PLUGIN_DIR"), log, log.Level)
	if err := registry.DiscoverPlugins(); err != nil {
		say(answer{Error: err.Error()})
		os.Exit(1)
	}
	h := &host{registry: registry, log: log}
	h.renew()
	say(answer{Result: h.list()})
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		var r request
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			say(answer{Error: "bad request: " + err.Error()})
			continue
		}
		result, err := h.do(r)
		if err != nil {
			say(answer{Error: err.Error()})
			continue
		}
		say(answer{Result: result})
	}
	h.manager.CleanupClients()
}

func say(a answer) {
	line, err := json.Marshal(a)
	if err != nil {
		line, _ = json.Marshal(answer{Error: err.Error()})
	}
	fmt.Println(string(line))
}

func (h *host) renew() { h.manager = clientmgmt.NewManager(h.log, h.log.Level, h.registry) }

func (h *host) list() any {
	all := []framework.PluginIdentifier{}
	for _, kind := range []common.PluginKind{common.PluginKindBackupItemActionV2, common.PluginKindRestoreItemActionV2,
		common.PluginKindDeleteItemAction, common.PluginKindItemBlockAction} {
		all = append(all, h.registry.List(kind)...)
	}
	return all
}

func (h *host) do(r request) (any, error) {
	if r.Op == "cleanup" {
		// As at the end of each backup: processes end, and the next call starts new ones.
		h.manager.CleanupClients()
		h.renew()
		return nil, nil
	}
	if r.Backup == nil {
		r.Backup = &api.Backup{}
	}
	if r.Restore == nil {
		r.Restore = &api.Restore{}
	}
	kind, method, _ := strings.Cut(r.Op, ".")
	switch kind {
	case "backup":
		return h.backup(method, r)
	case "restore":
		return h.restore(method, r)
	case "delete":
		return h.delete(method, r)
	case "block":
		return h.block(method, r)
	}
	return nil, fmt.Errorf("no such operation: %s", r.Op)
}

func (h *host) backup(method string, r request) (any, error) {
	action, err := h.manager.GetBackupItemActionV2(r.Name)
	if err != nil {
		return nil, err
	}
	switch method {
	case "appliesTo":
		return action.AppliesTo()
	case "progress":
		return action.Progress(r.OperationID, r.Backup)
	case "cancel":
		return nil, action.Cancel(r.OperationID, r.Backup)
	case "execute":
		item, additional, id, update, err := action.Execute(&unstructured.Unstructured{Object: r.Item}, r.Backup)
		if err != nil {
			return nil, err
		}
		return map[string]any{"item": item, "additionalItems": additional, "operationID": id, "itemsToUpdate": update}, nil
	}
	return nil, fmt.Errorf("no such method: %s", method)
}

func (h *host) restore(method string, r request) (any, error) {
	action, err := h.manager.GetRestoreItemActionV2(r.Name)
	if err != nil {
		return nil, err
	}
	switch method {
	case "appliesTo":
		return action.AppliesTo()
	case "progress":
		return action.Progress(r.OperationID, r.Restore)
	case "cancel":
		return nil, action.Cancel(r.OperationID, r.Restore)
	case "ready":
		id := velero.ResourceIdentifier{GroupResource: schema.GroupResource{Resource: "pods"}, Namespace: "a", Name: "b"}
		return action.AreAdditionalItemsReady([]velero.ResourceIdentifier{id}, r.Restore)
	case "execute":
		out, err := action.Execute(&velero.RestoreItemActionExecuteInput{
			Item:           &unstructured.Unstructured{Object: r.Item},
			ItemFromBackup: &unstructured.Unstructured{Object: r.ItemFromBackup},
			Restore:        r.Restore,
		})
		if err != nil {
			return nil, err
		}
		return map[string]any{"item": out.UpdatedItem, "additionalItems": out.AdditionalItems, "operationID": out.OperationID,
			"skipRestore": out.SkipRestore, "wait": out.WaitForAdditionalItems}, nil
	}
	return nil, fmt.Errorf("no such method: %s", method)
}

func (h *host) delete(method string, r request) (any, error) {
	action, err := h.manager.GetDeleteItemAction(r.Name)
	if err != nil {
		return nil, err
	}
	if method == "appliesTo" {
		return action.AppliesTo()
	}
	return nil, action.Execute(&velero.DeleteItemActionExecuteInput{
		Item: &unstructured.Unstructured{Object: r.Item}, Backup: r.Backup})
}

func (h *host) block(method string, r request) (any, error) {
	action, err := h.manager.GetItemBlockAction(r.Name)
	if err != nil {
		return nil, err
	}
	if method == "appliesTo" {
		return action.AppliesTo()
	}
	return action.GetRelatedItems(&unstructured.Unstructured{Object: r.Item}, r.Backup)
}

import { CodedError, lookup } from '../../base/index.ts';
import type { Backup, KubeObject, Restore } from '../../kube/index.ts';
import type { OperationProgress, Plugin, PluginKind, ResourceIdentifier } from '../contract.ts';
import { invalidOperationId, withoutOperations } from '../operation-errors.ts';
import { bytesOf, durationOnWire, objectFrom, progressOnWire } from './conversions.ts';
import type { Call, Handler } from './grpc-server.ts';
import {
  BACKUP_ITEM_ACTION,
  DELETE_ITEM_ACTION,
  ITEM_BLOCK_ACTION,
  LIST_PLUGINS,
  type Method,
  PLUGIN_LISTER,
  RESTORE_ITEM_ACTION,
  SERVICES,
} from './messages.ts';
import { type Decoded, decode, encode } from './wire.ts';

type Answer = (request: Decoded, call: Call) => Promise<Decoded> | Decoded;

/** The order in which Velero runs the actions of one program. */
const KINDS: readonly PluginKind[] = [
  'BackupItemActionV2',
  'RestoreItemActionV2',
  'DeleteItemAction',
  'ItemBlockAction',
];

/** Handlers of Velero's plugin calls, by path. `command`: the program to start later. */
export function handlersOf(plugins: readonly Plugin[], command: string): Map<string, Handler> {
  const handlers = new Map<string, Handler>();
  const add = (service: string, name: string, method: Method, answer: Answer): void => {
    handlers.set(`/${service}/${name}`, async (bytes, call) =>
      encode(method.response, await answer(decode(method.request, bytes), call)),
    );
  };
  const calls: Record<PluginKind, Calls> = {
    BackupItemActionV2: backupCalls(new Actions(plugins, 'BackupItemActionV2')),
    RestoreItemActionV2: restoreCalls(new Actions(plugins, 'RestoreItemActionV2')),
    DeleteItemAction: deleteCalls(new Actions(plugins, 'DeleteItemAction')),
    ItemBlockAction: blockCalls(new Actions(plugins, 'ItemBlockAction')),
  };
  for (const kind of KINDS) {
    for (const [name, [method, answer]] of Object.entries(calls[kind])) {
      add(SERVICES[kind], name, method, answer);
    }
  }
  const listed = KINDS.flatMap((kind) =>
    plugins
      .filter((plugin) => plugin.kind === kind)
      .map(({ name }) => ({ command, kind, name }))
      .sort((a, b) => (a.name < b.name ? -1 : 1)),
  );
  add(PLUGIN_LISTER, 'ListPlugins', LIST_PLUGINS, () => ({ plugins: listed }));
  return handlers;
}

/** The actions of one kind; each is opened once, on its first call. */
class Actions<K extends PluginKind> {
  readonly kind: K;
  readonly #plugins: ReadonlyMap<string, Plugin>;
  readonly #opened = new Map<string, Promise<object>>();

  constructor(plugins: readonly Plugin[], kind: K) {
    this.kind = kind;
    const own = plugins.filter((plugin) => plugin.kind === kind);
    this.#plugins = new Map(own.map((plugin) => [plugin.name, plugin]));
  }

  plugin(request: Decoded): Plugin {
    const name = request.plugin as string;
    const plugin = this.#plugins.get(name);
    if (plugin) return plugin;
    const text = `${this.kind} plugin: ${name} was not found or has an invalid name format`;
    throw new CodedError('NO_SUCH_PLUGIN', text);
  }

  open(request: Decoded): ReturnType<PluginOf<K>['open']> {
    const plugin = this.plugin(request);
    let opened = this.#opened.get(plugin.name);
    if (!opened) {
      opened = plugin.open();
      this.#opened.set(plugin.name, opened);
      // The cluster may be reachable in the next call.
      opened.catch(() => this.#opened.delete(plugin.name));
    }
    return opened as ReturnType<PluginOf<K>['open']>;
  }
}

type PluginOf<K extends PluginKind> = Extract<Plugin, { kind: K }>;

type Calls = Record<string, [Method, Answer]>;

const appliesTo = (actions: Pick<Actions<PluginKind>, 'plugin'>): Calls => ({
  AppliesTo: [
    BACKUP_ITEM_ACTION.AppliesTo,
    (request) => ({ selector: actions.plugin(request).appliesTo }),
  ],
});

/** The calls of an action with operations. `Run` is their backup or restore. */
interface Operable<Run> {
  progress?(id: string, run: Run, call: Call): Promise<OperationProgress>;
  cancel?(id: string, run: Run, call: Call): Promise<void>;
}

function operationCalls<Run>(
  actions: { open(request: Decoded): Promise<Operable<Run>> },
  { Progress, Cancel }: { readonly Progress: Method; readonly Cancel: Method },
  runIn: (request: Decoded) => Run,
): Calls {
  return {
    Progress: [
      Progress,
      async (request, call) => {
        const action = await actions.open(request);
        if (!action.progress) throw withoutOperations();
        return {
          progress: progressOnWire(
            await action.progress(operationIn(request), runIn(request), call),
          ),
        };
      },
    ],
    Cancel: [
      Cancel,
      async (request, call) => {
        const action = await actions.open(request);
        // As in Velero: without operations, there is nothing to cancel.
        await action.cancel?.(operationIn(request), runIn(request), call);
        return {};
      },
    ],
  };
}

function backupCalls(actions: Actions<'BackupItemActionV2'>): Calls {
  const { Execute } = BACKUP_ITEM_ACTION;
  return {
    ...appliesTo(actions),
    Execute: [
      Execute,
      async (request, call) => {
        const action = await actions.open(request);
        const [item, backup] = [objectIn(request, 'item'), backupIn(request)];
        const { item: updated, ...rest } = await action.execute(item, backup, call);
        return { ...rest, item: updated ? bytesOf(updated) : request.item };
      },
    ],
    ...operationCalls(actions, BACKUP_ITEM_ACTION, backupIn),
  };
}

function restoreCalls(actions: Actions<'RestoreItemActionV2'>): Calls {
  const { Execute, AreAdditionalItemsReady } = RESTORE_ITEM_ACTION;
  return {
    ...appliesTo(actions),
    Execute: [
      Execute,
      async (request, call) => {
        const action = await actions.open(request);
        const item = objectIn(request, 'item');
        const itemFromBackup = objectIn(request, 'itemFromBackup');
        const input = { item, itemFromBackup, restore: restoreIn(request) };
        const {
          item: updated,
          additionalItemsReadyTimeoutMs,
          ...rest
        } = await action.execute(input, call);
        return {
          ...rest,
          item: updated ? bytesOf(updated) : request.item,
          additionalItemsReadyTimeout: durationOnWire(additionalItemsReadyTimeoutMs),
        };
      },
    ],
    ...operationCalls(actions, RESTORE_ITEM_ACTION, restoreIn),
    AreAdditionalItemsReady: [
      AreAdditionalItemsReady,
      async (request, call) => {
        const action = await actions.open(request);
        const items = request.additionalItems as readonly ResourceIdentifier[];
        // Most actions do not wait for their additional items.
        const ready = await action.areAdditionalItemsReady?.(items, restoreIn(request), call);
        return { ready: ready ?? true };
      },
    ],
  };
}

function deleteCalls(actions: Actions<'DeleteItemAction'>): Calls {
  return {
    ...appliesTo(actions),
    Execute: [
      DELETE_ITEM_ACTION.Execute,
      async (request, call) => {
        const action = await actions.open(request);
        await action.execute(objectIn(request, 'item'), backupIn(request), call);
        return {};
      },
    ],
  };
}

function blockCalls(actions: Actions<'ItemBlockAction'>): Calls {
  return {
    ...appliesTo(actions),
    GetRelatedItems: [
      ITEM_BLOCK_ACTION.GetRelatedItems,
      async (request, call) => {
        const action = await actions.open(request);
        const item = objectIn(request, 'item');
        const relatedItems: readonly ResourceIdentifier[] = await action.relatedItems(
          item,
          backupIn(request),
          call,
        );
        return { relatedItems };
      },
    ],
  };
}

const operationIn = (request: Decoded): string => {
  const id = request.operationId as string;
  if (id === '') throw invalidOperationId(id);
  return id;
};

const backupIn = (request: Decoded): Backup => withSpec(objectIn(request, 'backup'));
const restoreIn = (request: Decoded): Restore => withSpec(objectIn(request, 'restore'));
/** Go's zero value of an object has an empty spec. */
const withSpec = (object: KubeObject): KubeObject & { spec: object } => ({ spec: {}, ...object });

const objectIn = (request: Decoded, name: string): KubeObject =>
  objectFrom(lookup(request, name) as Buffer, `the host sent as ${name}`);

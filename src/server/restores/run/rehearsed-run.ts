import type { StoredArchive } from '../../../archive/index.ts';
import type { BackupLog, FinePolicies } from '../../../backup/index.ts';
import { CodedError, parseSelector, silentLogger } from '../../../base/index.ts';
import {
  type BackupIdentity,
  type Discovery,
  type KubeClient,
  type KubeObject,
  type ObjectRef,
  PVCS,
  type Resource,
  type Restore,
  targetNamespace,
} from '../../../kube/index.ts';
import {
  inPlacePolicyOf,
  openActions,
  type OpenActions,
  pluginsFor,
} from '../../../plugin/index.ts';
import {
  type BackedUpItems,
  type DoneItem,
  type FinishedRestoreItem,
  initHookAction,
  openRestoreActions,
  type PersistentVolumeSteps,
  type PodVolumeSteps,
  type RestoreAction,
} from '../../../restore/index.ts';
import {
  FileBackups,
  PodVolumeRestores,
  RehearsedVolumes,
  waitContainerAction,
  type WaitContainerOptions,
} from '../../../restore-volumes/index.ts';
import { leftFilesText, sayWhatIsEmpty, sayWhatIsKept } from './status-after-items.ts';
import { asRestoreAction } from './host-sessions.ts';
import { CreatedPods } from './created-pods.ts';
import type { JournaledOperation } from './restore-journal.ts';
import { loadVolumeSources, type VolumeSources, volumesWithoutInfos } from './volume-sources.ts';
import { RestoredInPlace } from './volumes-in-place.ts';

export interface RehearsedRunOptions {
  readonly client: KubeClient;
  readonly discovery: Pick<Discovery, 'find' | 'findIn'>;
  /** Has a UID and a creation time, as if it existed. */
  readonly restore: Restore;
  readonly backup: BackupIdentity;
  /** The Backup in the cluster. */
  readonly known?: KubeObject | undefined;
  readonly items: BackedUpItems;
  /** The files of the backup. */
  readonly stored: StoredArchive;
  readonly policies?: FinePolicies | undefined;
  /** Whether the server runs the actions for CSI volumes. */
  readonly hasCsi: boolean;
  /** The init container that waits for a pod's volumes. */
  readonly helper: Pick<WaitContainerOptions, 'image' | 'tag'>;
  readonly inPlaceHindrance: Parameters<typeof openActions>[0]['inPlaceHindrance'];
  readonly signal: AbortSignal;
}

const CLAIM = 'v1/PersistentVolumeClaim';

/**
 * The parts of a server's run that a rehearsal needs besides the items: the server's own actions,
 * the volumes, and the final warnings. New objects stay in this process. Every operation counts as
 * completed.
 */
export class RehearsedRun {
  readonly actions: readonly RestoreAction[];
  readonly #options: RehearsedRunOptions;
  readonly #pods: CreatedPods;
  readonly #sources: VolumeSources;
  readonly #kept: KeptObjects;
  readonly #keeping: KubeClient;
  readonly #claims: DoneItem[] = [];
  readonly #there: DoneItem[] = [];
  readonly #operations: JournaledOperation[] = [];
  /** `namespace/name` of claims that have a warning about their files. */
  readonly #told = new Set<string>();
  /** Set when the run begins. */
  #log: BackupLog | undefined;
  #files: FileBackups | undefined;
  #inPlace: RestoredInPlace | undefined;

  private constructor(options: RehearsedRunOptions, kept: KeptObjects, sources: VolumeSources) {
    const { client, restore, hasCsi, inPlaceHindrance, discovery, items, policies } = options;
    const { signal } = options;
    this.#options = options;
    this.#sources = sources;
    this.#kept = kept;
    this.#keeping = kept as unknown as KubeClient;
    this.#pods = new CreatedPods({ client, discovery, restore, items, policies, signal });
    const own = openActions({
      client: this.#keeping,
      logger: silentLogger,
      ...(inPlaceHindrance && { inPlaceHindrance }),
    });
    const { namespace = '' } = restore.metadata;
    const say = (level: keyof BackupLog): BackupLog['info'] => {
      return (text, about) => this.#log?.[level](text, about);
    };
    const waits = waitContainerAction({
      client: this.#keeping,
      namespace,
      ...options.helper,
      files: { of: async (pod, from) => (await this.#files?.of(pod, from)) ?? [] },
      log: { info: say('info'), warn: say('warn'), error: say('error') },
    });
    this.actions = [
      ...[...openRestoreActions(this.#keeping, namespace), initHookAction(), waits].sort((a, b) =>
        a.name < b.name ? -1 : 1,
      ),
      ...(hasCsi ? csiActions(own) : []),
    ];
  }

  /** Throws errors of the bucket and of the API server. */
  static async open(options: RehearsedRunOptions): Promise<RehearsedRun> {
    const { stored, backup, known, restore, signal } = options;
    const kept = new KeptObjects(options.client);
    const client = kept as unknown as KubeClient;
    const sources = await loadVolumeSources({ client, stored, backup, known, restore, signal });
    return new RehearsedRun(options, kept, sources);
  }

  volumes(log: BackupLog): {
    readonly volumes: PersistentVolumeSteps;
    readonly podVolumes: PodVolumeSteps;
    readonly volumesInPlace: RestoredInPlace;
  } {
    const { restore, signal } = this.#options;
    const sources = this.#sources;
    const files = new FileBackups({
      backups: sources.podVolumeBackups,
      isMade: (pod) => this.#pods.has(pod),
      isClaimMade: ({ namespace, name }) =>
        this.#hasMade(targetNamespace(namespace, restore), name),
      onLeft: (claim, pod) => {
        const namespace = targetNamespace(claim.namespace, restore);
        this.#told.add(`${namespace}/${claim.name}`);
        const about = { resource: 'persistentvolumeclaims', namespace, name: claim.name };
        log.warn(leftFilesText(`${namespace}/${claim.name}`, pod.name), about);
      },
    });
    this.#files = files;
    this.#log = log;
    const inPlace = new RestoredInPlace({
      // A real run waits for DataDownloads of other restores; a rehearsal does not.
      client: { collect: () => Promise.resolve([]), find: () => Promise.resolve(undefined) },
      namespace: restore.metadata.namespace ?? '',
      timeoutMs: 0,
      pollMs: 0,
      log,
      signal,
      poll: () => Promise.resolve({ operations: this.#operations.map(succeeded) }),
      whileWaiting: (task) => task(),
    });
    this.#inPlace = inPlace;
    return {
      volumes: new RehearsedVolumes({ factsOf: sources.factsOf, log }),
      podVolumes: new PodVolumeRestores({
        client: this.#keeping,
        restore,
        files,
        log,
        signal,
        storageLocation: '',
        resourceTimeoutMs: 0,
        repositories: { ensure: () => Promise.resolve() },
      }),
      volumesInPlace: inPlace,
    };
  }

  begun(operations: readonly JournaledOperation[]): void {
    this.#operations.push(...operations);
    this.#inPlace?.note(operations);
  }

  done(item: FinishedRestoreItem): void {
    this.#pods.note(item);
    if (item.kind !== CLAIM) return;
    const { namespace, name, outcome, exists } = item;
    if (outcome === 'created') {
      this.#claims.push(item);
      const { restoredAs = name } = item;
      this.#kept.add(PVCS, { metadata: { namespace, name: restoredAs } } as KubeObject);
    } else if (exists) this.#there.push(item);
    else if (outcome === 'failed' && inPlacePolicyOf(this.#options.restore)) {
      this.#inPlace?.noteRefused(item);
    }
  }

  /** Warns as a run does after its items. */
  async over(log: BackupLog): Promise<void> {
    const { items, backup, restore } = this.#options;
    const sources = this.#sources;
    const { infos } = sources;
    const claims = this.#claims;
    const there = this.#there;
    const withFiles = [...(this.#files?.claims() ?? [])];
    const about = { infos, operations: this.#operations, restore, withFiles };
    const isInPlace = inPlacePolicyOf(restore) !== undefined;
    sayWhatIsEmpty({ ...about, claims, there: isInPlace ? there : [] }, log);
    const unnoted = await volumesWithoutInfos(sources, items, backup);
    const told = this.#told;
    sayWhatIsKept({ ...about, infos: [...infos, ...unnoted], there, told }, log);
  }

  #hasMade(namespace: string, name: string): boolean {
    return this.#claims.some((made) => made.namespace === namespace && made.name === name);
  }
}

const succeeded = ({ operationId }: JournaledOperation) =>
  ({ spec: { operationID: operationId }, status: { phase: 'Completed' } }) as never;

/** The CSI actions of a server, in its order. */
function csiActions(own: OpenActions): RestoreAction[] {
  return pluginsFor({ hasCsi: false, load: () => Promise.resolve(own) }).flatMap((plugin) => {
    if (plugin.kind !== 'RestoreItemActionV2') return [];
    const { name, appliesTo, open } = plugin;
    const opened = open(silentLogger);
    return [
      asRestoreAction({
        name,
        appliesTo,
        action: {
          execute: async (input, context) => (await opened).execute(input, context),
          areAdditionalItemsReady: async (items, restore, context) =>
            (await (await opened).areAdditionalItemsReady?.(items, restore, context)) ?? true,
        },
      }),
    ];
  });
}

const keyOf = ({ plural, group }: Resource<KubeObject>): string => `${plural}.${group}`;
const placeOf = ({ namespace = '', name }: ObjectRef): string => `${namespace}/${name}`;

/** A client that reads the cluster but keeps new objects in memory, where actions find them. */
class KeptObjects {
  readonly #client: KubeClient;
  readonly #kept = new Map<string, Map<string, KubeObject>>();

  constructor(client: KubeClient) {
    this.#client = client;
  }

  add(resource: Resource<KubeObject>, object: KubeObject): void {
    const known = this.#kept.get(keyOf(resource)) ?? new Map<string, KubeObject>();
    const { uid = '', creationTimestamp = new Date().toISOString() } = object.metadata as {
      uid?: string;
      creationTimestamp?: string;
    };
    const metadata = { ...object.metadata, uid, creationTimestamp };
    known.set(placeOf(metadata), { ...object, metadata });
    this.#kept.set(keyOf(resource), known);
  }

  #find(resource: Resource<KubeObject>, ref: ObjectRef): KubeObject | undefined {
    return this.#kept.get(keyOf(resource))?.get(placeOf(ref));
  }

  async create(resource: Resource<KubeObject>, object: KubeObject): Promise<KubeObject> {
    if (await this.find(resource, object.metadata)) {
      const text = `${resource.plural} "${object.metadata.name}" already exists`;
      throw new CodedError('KUBE_ALREADY_EXISTS', text);
    }
    this.add(resource, object);
    return object;
  }

  async find(
    resource: Resource<KubeObject>,
    ref: ObjectRef,
    options?: Parameters<KubeClient['find']>[2],
  ): Promise<KubeObject | undefined> {
    return this.#find(resource, ref) ?? (await this.#client.find(resource, ref, options));
  }

  async get(
    resource: Resource<KubeObject>,
    ref: ObjectRef,
    options?: Parameters<KubeClient['get']>[2],
  ): Promise<KubeObject> {
    return this.#find(resource, ref) ?? (await this.#client.get(resource, ref, options));
  }

  async list(
    resource: Resource<KubeObject>,
    options: Parameters<KubeClient['list']>[1] = {},
  ): Promise<KubeObject[]> {
    const selector = parseSelector(options.labelSelector ?? '');
    const own = [...(this.#kept.get(keyOf(resource))?.values() ?? [])].filter(
      ({ metadata }) =>
        [undefined, metadata.namespace].includes(options.namespace) &&
        selector.matches(metadata.labels),
    );
    return [...(await this.#client.list(resource, options)), ...own];
  }

  listPage(...given: Parameters<KubeClient['listPage']>): ReturnType<KubeClient['listPage']> {
    return this.#client.listPage(...given);
  }
}

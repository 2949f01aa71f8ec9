import {
  type BackupArchive,
  type BackupVolumeInfo,
  RestoreArchive,
  type RestoreFiles,
} from '../../../archive/index.ts';
import type { SnapshotLocation } from '../../../backup-volumes/index.ts';
import { type FinePolicies, goDurationNs } from '../../../backup/index.ts';
import type { Logger, Nanoseconds } from '../../../base/index.ts';
import type { Bucket } from '../../../blob/index.ts';
import {
  actionOf,
  type Operation,
  type OperationMap,
  orderedRecord,
  type Round,
} from '../../../item-operations/index.ts';
import {
  type ConfigMap,
  type Discovery,
  type KubeClient,
  type Restore,
  targetNamespace,
} from '../../../kube/index.ts';
import { inPlacePolicyOf } from '../../../plugin/index.ts';
import {
  type DoneItem,
  initHookAction,
  openRestoreActions,
  type RestoreAction,
  type RestorePriorities,
  type RestoreRunResult,
  runRestore,
  type VersionChoice,
} from '../../../restore/index.ts';
import {
  FileBackups,
  PodVolumeRestores,
  RestoredVolumes,
  restoreVolumeInfosOf,
  waitContainerAction,
  type WaitContainerOptions,
} from '../../../restore-volumes/index.ts';
import type { TimeoutOf } from '../../operations/followed-operations.ts';
import { patiently } from '../../runs/bucket-retries.ts';
import { patientClient } from '../../runs/api-outage.ts';
import { type AfterRun, storeAfterRun } from '../contract.ts';
import { restoreFailureLines } from '../operation-failures.ts';
import {
  leftFilesText,
  podVolumesOf,
  provisionedClaims,
  restoredVolumes,
  sayWhatIsEmpty,
  sayWhatIsKept,
  statusAfterItems,
} from './status-after-items.ts';
import type { RestoreOutcome, RestoreRequest, RestoreSession } from './contract.ts';
import { HookRun, type HookRunOptions } from './hook-run.ts';
import { CreatedPods } from './created-pods.ts';
import type { RunParts } from './restore-ending.ts';
import type { JournaledOperation } from './restore-journal.ts';
import { loadRestoreSources, type RestoreSources } from './restore-sources.ts';
import { type VolumeSources, volumesWithoutInfos } from './volume-sources.ts';
import { versionChoice } from './version-choice.ts';
import { RestoredInPlace } from './volumes-in-place.ts';
import { leadingClient } from './leadership.ts';

/** Settings of all runs of restores. */
export interface RestoreRunSettings {
  readonly client: KubeClient;
  readonly discovery: Discovery;
  readonly archiveOf: (bucket: Bucket) => BackupArchive;
  readonly operations: OperationMap;
  /** Loads locations of native snapshots by name, with their credentials. */
  readonly snapshotLocations: (
    names: readonly string[],
    signal: AbortSignal,
  ) => Promise<readonly SnapshotLocation[]>;
  readonly directory: string;
  /**
   * The image with `/velero-restore-helper`, for pods that wait for volumes. The tag is for images
   * from a ConfigMap without a tag.
   */
  readonly helper: Pick<WaitContainerOptions, 'image' | 'tag'>;
  readonly priorities?: RestorePriorities | undefined;
  /** Velero's feature `EnableAPIGroupVersions`: chooses among several versions of a type. */
  readonly hasAllVersions?: boolean;
  /** Parses the ConfigMap that a Restore names. Throws if it is invalid. */
  readonly readPolicies?: (config: ConfigMap) => FinePolicies;
  /** `--terminating-resource-timeout`. */
  readonly terminatingMs: number;
  readonly trustsMustInclude?: boolean;
  /** Limit for the unpacked objects of a backup; that of the archive by default. */
  readonly contentBytesMax?: number | undefined;
  readonly resourceTimeoutMs: number;
  /** The same as in the controller of operations. */
  readonly timeoutNsOf?: TimeoutOf<Restore>;
  readonly logger: Logger;
  readonly patienceMs?: number;
  readonly pollMs?: number;
  readonly podWatch?: HookRunOptions['watch'];
}

/** The parts of one run. The caller closes them. */
export interface RestoreRunOptions {
  readonly request: RestoreRequest;
  readonly parts: RunParts;
  readonly session: RestoreSession;
  readonly settings: RestoreRunSettings;
}

interface Beside {
  readonly files: FileBackups;
  readonly volumes: RestoredVolumes;
  readonly podVolumes: PodVolumeRestores;
  readonly hooks: HookRun;
  readonly inPlace: RestoredInPlace;
}

type NamedPlace = Pick<DoneItem, 'namespace' | 'name'>;

/**
 * Longest outage of the API server during an item. Our choice, as for backups: replacing a control
 * plane takes less.
 */
const ITEM_PATIENCE_MS = 20 * 60_000;
const OPERATION_NS = 4n * 3_600_000_000_000n;
const CLAIMS = 'v1/PersistentVolumeClaim';

/** A run of a restore: reads the backup, creates objects, and stores the files. */
export class RestoreRun {
  readonly #request: RestoreRequest;
  readonly #parts: RunParts;
  readonly #session: RestoreSession;
  readonly #settings: RestoreRunSettings;
  /** Waits while the API server is away. */
  readonly #cluster: KubeClient;
  /** Claims of the backup that existed in the cluster. */
  readonly #there: DoneItem[] = [];
  /** `namespace/name` of claims that have a warning about their files. */
  readonly #told = new Set<string>();

  constructor({ request, parts, session, settings }: RestoreRunOptions) {
    const { logger, patienceMs, client } = settings;
    const { signal, assertLeading } = parts;
    this.#request = request;
    this.#parts = parts;
    this.#session = session;
    this.#settings = settings;
    this.#cluster = patientClient(client, { logger, signal, patienceMs, assertLeading });
  }

  /** Call it once. Throws the error that fails the restore, and the reason of the signal. */
  async make(): Promise<RestoreOutcome> {
    const { restore } = this.#request;
    const { bucket, journal, subject, signal } = this.#parts;
    const { discovery, operations, archiveOf, directory, readPolicies } = this.#settings;
    const { logger, patienceMs } = this.#settings;
    operations.takeOver(subject, journal.operations);
    await this.#patiently('ask the API server what it serves', () => discovery.refresh({ signal }));
    await using sources = await loadRestoreSources({
      client: this.#cluster,
      archive: archiveOf(bucket),
      restore,
      directory,
      readPolicies,
      contentBytesMax: this.#settings.contentBytesMax,
      location: this.#request.location,
      logger,
      patienceMs,
      signal,
    });
    journal.noteBackup(sources.stored, restore);
    const pods = this.#pods(sources);
    const files = new FileBackups({
      backups: sources.volumes.podVolumeBackups,
      isMade: (pod) => pods.has(pod),
      isClaimMade: (claim) => this.#hasMade(claim),
      onLeft: (claim, pod) => {
        this.#sayLeft(claim, pod);
      },
      onFact: (fact) => journal.addFact(fact),
    });
    files.resume(journal.facts);
    const volumes = await this.#volumes(sources);
    const podVolumes = this.#podVolumes(files);
    await using hooks = this.#hooks();
    const beside = { files, volumes, podVolumes, hooks, inPlace: this.#inPlace() };
    const made = await this.#makeItems(sources, pods, beside);
    const unnoted = await volumesWithoutInfos(sources.volumes, sources.contents, sources.backup);
    await sources.contents.close();
    return await this.#finish(sources.volumes, unnoted, beside, made);
  }

  async #makeItems(
    { backup, backupObject, contents: items, modifiers, policies }: RestoreSources,
    pods: CreatedPods,
    { files, inPlace: volumesInPlace, ...beside }: Beside,
  ): Promise<RestoreRunResult> {
    const { restore, onProgress } = this.#request;
    const { journal, log, subject, signal, assertLeading } = this.#parts;
    const { client, discovery, operations, priorities, patienceMs, pollMs } = this.#settings;
    const { terminatingMs, resourceTimeoutMs, trustsMustInclude } = this.#settings;
    const versions = await this.#versions(items.formatVersion);
    const note = (begun: readonly JournaledOperation[]): void => {
      operations.note(subject, begun);
      volumesInPlace.note(begun);
    };
    return runRestore({
      client: leadingClient(client, assertLeading),
      discovery,
      restore,
      log,
      signal,
      backup,
      backupObject,
      items,
      modifiers,
      policies,
      versions,
      ...beside,
      volumesInPlace,
      actions: [...this.#ownActions(files), ...(await this.#session.loadActions(signal))],
      sink: {
        put: async (item) => {
          pods.note(item);
          this.#noteThere(item, volumesInPlace);
          const before = journal.operations.length;
          await journal.put(item);
          note(journal.operations.slice(before));
        },
        begun: (started) => {
          const before = journal.operations.length;
          journal.begun(started);
          note(journal.operations.slice(before));
        },
        willCreateNamespace: (name) => journal.willCreateNamespace(name),
      },
      ...(journal.isContinued && { journal }),
      isClockSetBack: () => journal.isClockSetBack,
      ...(priorities && { priorities }),
      terminatingMs,
      resourceTimeoutMs,
      trustsMustInclude,
      patienceMs: patienceMs ?? ITEM_PATIENCE_MS,
      ...(pollMs !== undefined && { pollMs }),
      onProgress,
    });
  }

  /** Undefined to use the versions that the backup's cluster preferred. */
  async #versions(formatVersion: string): Promise<VersionChoice | undefined> {
    const { discovery, hasAllVersions = false } = this.#settings;
    // Older formats contain each item once.
    if (!hasAllVersions || formatVersion < '1.1.0') return undefined;
    const { namespace } = this.#request.restore.metadata;
    return versionChoice(this.#cluster, discovery, { namespace, signal: this.#parts.signal });
  }

  /** After the items: reports missing data, and stores the after-run file and the files. */
  async #finish(
    { infos }: VolumeSources,
    unnoted: readonly BackupVolumeInfo[],
    { files, volumes, podVolumes, hooks }: Beside,
    made: RestoreRunResult,
  ): Promise<RestoreOutcome> {
    const { restore } = this.#request;
    const { journal, log, signal } = this.#parts;
    const handed = await hooks.handOver(signal);
    const { claims, operations: begun } = journal;
    const isInPlace = inPlacePolicyOf(restore) !== undefined;
    const about = { infos, operations: begun, restore, withFiles: [...files.claims()] };
    sayWhatIsEmpty({ ...about, claims, there: isInPlace ? this.#there : [] }, log);
    const skipped = sayWhatIsKept(
      { ...about, infos: [...infos, ...unnoted], there: this.#there, told: this.#told },
      log,
    );
    const found = await restoredVolumes(claims, {
      client: this.#cluster,
      restore,
      log,
      signal,
      operations: begun,
    });
    const claimOf = new Map(podVolumesOf(begun).map((each) => [each.name, each.claim]));
    const what = 'ask for the PodVolumeRestores of a restore';
    const pods = await this.#patiently(what, () => podVolumes.list());
    const round = await this.#poll();
    for (const line of restoreFailureLines(restore, round.operations))
      log.error(line.message, line.about);
    log.info('restore completed');
    const left: AfterRun = {
      version: 1,
      restoreUID: restore.metadata.uid,
      claims: provisionedClaims(claims, infos, restore),
      podVolumes: podVolumesOf(begun),
      hooks: {
        attempted: handed.attempted,
        failed: handed.failed,
        failures: [],
        pods: handed.pods.map(({ namespace, name, uid, waitedMs, open }) => ({
          namespace,
          name,
          uid,
          waitedMs,
          open: [...open],
        })),
      },
    };
    const logFile = await journal.finish();
    const { results } = log;
    await this.#store(left, {
      itemOperations: round.operations.map(orderedRecord),
      log: logFile,
      results: results.lists,
      resourceList: made.resourceList,
      volumeInfos: restoreVolumeInfosOf({
        ...found,
        skipped,
        natives: volumes.usedSnapshots,
        podVolumes: pods.map((each) => ({
          made: each,
          claim: claimOf.get(each.metadata.name) ?? '',
        })),
      }),
    });
    return statusAfterItems(made, results, round.operations);
  }

  async #store(left: AfterRun, files: RestoreFiles): Promise<void> {
    const { metadata } = this.#request.restore;
    const { bucket, signal, assertLeading } = this.#parts;
    await this.#patiently('store the files of a restore', async () => {
      assertLeading();
      await storeAfterRun(bucket, metadata, left, { signal });
      const options = { signal, assertAllowed: assertLeading };
      await new RestoreArchive(bucket).put(metadata.name, files, options);
    });
  }

  #poll(): Promise<Round> {
    const { restore } = this.#request;
    const { subject, signal } = this.#parts;
    return this.#patiently('store the operations of a restore', () =>
      this.#settings.operations.poll(subject, {
        asker: this.#session.asker,
        signal,
        timeoutNsOf: (operation) => this.#timeoutNs(restore, operation),
      }),
    );
  }

  #timeoutNs(restore: Restore, operation: Operation): Nanoseconds {
    const asked = goDurationNs(restore.spec.itemOperationTimeout) ?? OPERATION_NS;
    return this.#settings.timeoutNsOf?.(actionOf(operation), restore, asked) ?? asked;
  }

  #patiently<T>(what: string, task: () => Promise<T>): Promise<T> {
    const { logger, patienceMs } = this.#settings;
    return patiently(task, { what, logger, signal: this.#parts.signal, patienceMs });
  }

  #pods({ contents: items, policies }: RestoreSources): CreatedPods {
    const { restore } = this.#request;
    const { journal, signal } = this.#parts;
    const { discovery } = this.#settings;
    const asked = { client: this.#cluster, discovery, signal };
    const pods = new CreatedPods({ ...asked, restore, items, policies });
    for (const item of journal.all()) pods.note(item);
    return pods;
  }

  async #volumes({ volumes: { factsOf, natives } }: RestoreSources): Promise<RestoredVolumes> {
    const { restore } = this.#request;
    const { journal, log, signal } = this.#parts;
    const { terminatingMs, snapshotLocations, pollMs } = this.#settings;
    const names = new Set(natives.flatMap(({ spec }) => (spec.location ? [spec.location] : [])));
    const volumes = new RestoredVolumes({
      client: this.#cluster,
      restore,
      factsOf,
      log,
      signal,
      terminatingMs,
      locations: names.size === 0 ? [] : await snapshotLocations([...names], signal),
      snapshotters: (provider, config) => this.#session.snapshotter(provider, config),
      ...(pollMs !== undefined && { pollMs }),
      onFact: async (fact) => {
        // Only the journal knows a volume that a provider has just made. Other facts can be derived
        // again, and a put for each would be slow with thousands of volumes.
        if (fact.kind === 'volume') await journal.addFact(fact);
        else journal.noteFact(fact);
      },
    });
    volumes.resume(journal.facts);
    return volumes;
  }

  #podVolumes(files: FileBackups): PodVolumeRestores {
    const { restore, location: storageLocation } = this.#request;
    const { log, signal } = this.#parts;
    const { resourceTimeoutMs } = this.#settings;
    return new PodVolumeRestores({
      client: this.#cluster,
      restore,
      storageLocation,
      files,
      log,
      signal,
      resourceTimeoutMs,
    });
  }

  #hooks(): HookRun {
    const { restore } = this.#request;
    const { journal, log } = this.#parts;
    const { client, logger, podWatch } = this.#settings;
    return new HookRun({
      client,
      restore,
      logger,
      earlier: journal.hooks,
      begun: journal.begunHooks,
      log: {
        info: (message, about) => {
          log.info(message, about);
        },
        warn: (message, about) => {
          log.warn(message, about);
        },
        error: (message, about) => {
          log.newError(message, about);
        },
      },
      exec: (question, asked) => this.#cluster.exec({ ...question, signal: asked }),
      onBegin: (id) => journal.willRunHook(id),
      onRecord: (record) => {
        journal.addHook(record);
      },
      ...(podWatch && { watch: podWatch }),
    });
  }

  #inPlace(): RestoredInPlace {
    const { restore, whileWaiting } = this.#request;
    const { journal, log, signal } = this.#parts;
    const { pollMs } = this.#settings;
    const timeoutNs = goDurationNs(restore.spec.itemOperationTimeout) ?? OPERATION_NS;
    const inPlace = new RestoredInPlace({
      log,
      signal,
      pollMs,
      client: this.#cluster,
      poll: () => this.#poll(),
      namespace: restore.metadata.namespace ?? '',
      timeoutMs: Number(timeoutNs / 1_000_000n),
      whileWaiting: whileWaiting ?? ((task) => task()),
    });
    inPlace.note(journal.operations);
    for (const item of journal.all()) this.#noteThere(item, inPlace);
    return inPlace;
  }

  /** `claim` has its name in the backup. */
  #hasMade(claim: NamedPlace): boolean {
    const namespace = targetNamespace(claim.namespace, this.#request.restore);
    const { claims } = this.#parts.journal;
    return claims.some((made) => made.namespace === namespace && made.name === claim.name);
  }

  #sayLeft(claim: NamedPlace, pod: NamedPlace): void {
    const namespace = targetNamespace(claim.namespace, this.#request.restore);
    const { name } = claim;
    this.#told.add(`${namespace}/${name}`);
    const text = leftFilesText(`${namespace}/${name}`, pod.name);
    this.#parts.log.warn(text, { resource: 'persistentvolumeclaims', namespace, name });
  }

  #noteThere(item: DoneItem, inPlace: RestoredInPlace): void {
    if (item.kind !== CLAIMS) return;
    if (item.exists && item.outcome !== 'created') this.#there.push(item);
    const isRefused = !item.exists && item.outcome === 'failed';
    if (isRefused && inPlacePolicyOf(this.#request.restore)) inPlace.noteRefused(item);
  }

  /** Velero's own actions, sorted by name. Actions of plugins come after them. */
  #ownActions(files: FileBackups): RestoreAction[] {
    const { namespace = '' } = this.#request.restore.metadata;
    const { log } = this.#parts;
    const { helper } = this.#settings;
    return [
      ...openRestoreActions(this.#cluster, namespace),
      initHookAction(),
      waitContainerAction({ client: this.#cluster, namespace, ...helper, files, log }),
    ].sort((a, b) => (a.name < b.name ? -1 : 1));
  }
}

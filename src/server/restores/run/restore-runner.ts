import { type BackupArchive, type Contents, RestoreArchive } from '../../../archive/index.ts';
import type { SnapshotLocation } from '../../../backup-volumes/index.ts';
import { type FinePolicies, goDurationNs } from '../../../backup/index.ts';
import {
  asError,
  type Clock,
  CodedError,
  type Logger,
  messageOf,
  type Nanoseconds,
  retryOf,
  systemClock,
} from '../../../base/index.ts';
import type { Bucket } from '../../../blob/index.ts';
import {
  actionOf,
  type Operation,
  type OperationMap,
  orderedRecord,
  type Round,
  type Subject,
} from '../../../item-operations/index.ts';
import {
  CONFIG_MAPS,
  type ConfigMap,
  type Discovery,
  type KubeClient,
} from '../../../kube/index.ts';
import { inPlacePolicyOf } from '../../../plugin/index.ts';
import {
  type DoneItem,
  initHookAction,
  isPodRestored,
  openRestoreActions,
  ResourceModifiers,
  type Restore,
  type RestoreAction,
  type RestorePriorities,
  runRestore,
} from '../../../restore/index.ts';
import {
  FileBackups,
  type FileRestoreFact,
  PodVolumeRestores,
  RestoredVolumes,
  restoreVolumeInfosOf,
  type VolumeFact,
  waitContainerAction,
  type WaitContainerOptions,
} from '../../../restore-volumes/index.ts';
import type { Buckets } from '../../backups/contract.ts';
import type { TimeoutOf } from '../../operations/followed-operations.ts';
import { isLeft } from '../../runs/ending.ts';
import { patiently } from '../../runs/patience.ts';
import { patientClient } from '../../runs/while-away.ts';
import { type AfterRun, storeAfterRun } from '../contract.ts';
import { restoreFailureLines } from '../operation-failures.ts';
import {
  podVolumesOf,
  provisionedClaims,
  restoredVolumes,
  sayWhatIsEmpty,
  statusAfterItems,
} from './after-items.ts';
import type {
  RestoreOutcome,
  RestoreRequest,
  RestoreRunner,
  RestoreSession,
  RestoreSessions,
} from './contract.ts';
import { HookRun, type HookRunOptions } from './hook-run.ts';
import {
  removeRestoreJournal,
  type RestoreFact,
  RestoreJournal,
  type RestoreJournalOptions,
} from './restore-journal.ts';
import { RestoreEnding, type RunParts } from './restore-ending.ts';
import { RestoreLog } from './restore-log.ts';
import { loadVolumeSources, type VolumeSources } from './volume-sources.ts';
import { RestoredInPlace } from './volumes-in-place.ts';
import { leadingClient, whileLeading } from './while-leading.ts';

export interface ClusterRestoreRunnerOptions {
  readonly client: KubeClient;
  readonly discovery: Discovery;
  readonly buckets: Buckets;
  readonly archiveOf: (bucket: Bucket) => BackupArchive;
  readonly sessions: RestoreSessions;
  readonly operations: OperationMap;
  /** By the names that native snapshots have; with their credentials. */
  readonly snapshotLocations: (
    names: readonly string[],
    signal: AbortSignal,
  ) => Promise<readonly SnapshotLocation[]>;
  /** Scratch space. */
  readonly directory: string;
  /** With `/velero-restore-helper` in it, for pods that wait for their volumes; and the tag of an image that a ConfigMap names without one. */
  readonly helper: Pick<WaitContainerOptions, 'image' | 'tag'>;
  readonly priorities?: RestorePriorities | undefined;
  /** Of the ConfigMap that a Restore names. Throws what is wrong with it. */
  readonly readPolicies?: (config: ConfigMap) => FinePolicies;
  /** `--terminating-resource-timeout`. */
  readonly terminatingMs: number;
  /** `--resource-timeout`. */
  readonly resourceTimeoutMs: number;
  /** As the controller of operations has it. */
  readonly timeoutNsOf?: TimeoutOf<Restore>;
  readonly logger: Logger;
  /** Of the logs of restores. */
  readonly logLevel: string;
  readonly logFormat: string;
  readonly clock?: Clock;
  readonly patienceMs?: number;
  readonly pollMs?: number;
  readonly podWatch?: HookRunOptions['watch'];
  readonly journalLimits?: RestoreJournalOptions['limits'];
}

/** How long an API server may be away while an item is made. Our choice, as for backups: a control plane is replaced in less. */
const ITEM_PATIENCE_MS = 20 * 60_000;
const CLOCK_MS = 2000;
const OPERATION_NS = 4n * 3_600_000_000_000n;
const PODS = 'v1/Pod';
const CLAIMS = 'v1/PersistentVolumeClaim';

/** Brings backups into the cluster, from the bucket of their location. */
export class ClusterRestoreRunner implements RestoreRunner {
  readonly #options: ClusterRestoreRunnerOptions;
  readonly #clock: Clock;
  readonly #ending: RestoreEnding;

  constructor(options: ClusterRestoreRunnerOptions) {
    this.#options = options;
    this.#clock = options.clock ?? systemClock;
    this.#ending = new RestoreEnding(options);
  }

  async run(request: RestoreRequest): Promise<RestoreOutcome> {
    const { restore, location } = request;
    const { buckets, directory, logger, patienceMs } = this.#options;
    const { name, uid } = restore.metadata;
    const { signal, assertLeading } = whileLeading(request);
    await using opened = await patiently(() => buckets.open(location, signal), {
      ...{ what: 'open the bucket of a restore', logger, signal, patienceMs },
    });
    const { bucket } = opened;
    const subject: Subject = { kind: 'Restore', name, uid, location };
    let journal: RestoreJournal;
    request.onBegin?.();
    try {
      await patiently(() => this.#ending.assertNotFailed(request, { bucket, signal }), {
        ...{ what: 'look for the files of an earlier run', logger, signal, patienceMs },
      });
      journal = await RestoreJournal.open({
        ...{ bucket, name, uid, directory, assertLeading, logger, signal, patienceMs },
        ...{ clock: this.#clock, limits: this.#options.journalLimits },
        isSetBack: () => this.#isSetBack(restore),
      });
    } catch (error) {
      // Nobody goes on with what an earlier run has begun.
      if (!isLeft(error, request.signal)) await this.#ending.endUnread(request, subject, bucket);
      throw error;
    }
    await using opening = journal;
    const log = new RestoreLog({
      sink: journal,
      subject: { restore: `${restore.metadata.namespace ?? ''}/${name}` },
      ...{ level: this.#options.logLevel, format: this.#options.logFormat },
      ...{ entries: journal.entries, clock: this.#clock },
    });
    return await this.#make(request, {
      ...{ bucket, journal: opening, log, subject, signal, assertLeading },
    });
  }

  async #make(request: RestoreRequest, parts: RunParts): Promise<RestoreOutcome> {
    const { restore } = request;
    const { journal, log, signal } = parts;
    let session: RestoreSession | undefined;
    try {
      log.info(journal.isContinued ? 'Continuing restore' : 'starting restore');
      session = await this.#options.sessions.open(restore, log.logger);
      return await this.#restore(request, parts, session);
    } catch (error) {
      const reason = signal.aborted ? asError(signal.reason) : error;
      // Another server goes on, and finds everything as it is.
      if (!isLeft(reason, request.signal))
        await this.#ending.fail(request, parts, { session, reason });
      throw reason;
    } finally {
      await session?.[Symbol.asyncDispose]();
    }
  }

  async #restore(
    request: RestoreRequest,
    parts: RunParts,
    session: RestoreSession,
  ): Promise<RestoreOutcome> {
    const { restore } = request;
    const { bucket, journal, log, subject, signal, assertLeading } = parts;
    const { client, discovery, operations, logger, patienceMs, pollMs } = this.#options;
    const about = { logger, signal, patienceMs };
    operations.takeOver(subject, journal.operations);
    const cluster = patientClient(client, { ...about, assertLeading });
    await patiently(() => discovery.refresh({ signal }), {
      ...{ ...about, what: 'ask the API server what it serves' },
    });
    const stored = await this.#download(
      () => this.#options.archiveOf(bucket).open(restore.spec.backupName ?? '', { signal }),
      about,
    );
    await using contents = await this.#download(
      () => stored.openContents({ directory: this.#options.directory, signal }),
      about,
    );
    const sources = await this.#download(
      () => loadVolumeSources({ client: cluster, stored, restore, signal }),
      about,
    );
    const modifiers = await this.#modifiers(restore, cluster, signal);
    const policies = await this.#policies(restore, cluster, signal);
    const isMade = this.#madePods(request, parts, { items: contents, policies });
    const files = new FileBackups({
      backups: sources.podVolumeBackups,
      isMade: isMade.ask,
      onFact: (fact) => journal.addFact(fact),
    });
    files.resume(journal.facts.filter(isOfFiles));
    const volumes = await this.#volumes(request, parts, {
      ...{ session, cluster, factsOf: sources.factsOf, natives: sources.natives },
    });
    const podVolumes = new PodVolumeRestores({
      ...{ client: cluster, restore, storageLocation: request.location, files, log, signal },
      resourceTimeoutMs: this.#options.resourceTimeoutMs,
    });
    await using hooks = new HookRun({
      ...{ client, restore, logger, earlier: journal.hooks, begun: journal.begunHooks },
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
      exec: (question, asked) => cluster.exec({ ...question, signal: asked }),
      onBegin: (id) => journal.willRunHook(id),
      onRecord: (record) => {
        journal.addHook(record);
      },
      ...(this.#options.podWatch && { watch: this.#options.podWatch }),
    });
    const poll = (): Promise<Round> =>
      patiently(
        () =>
          operations.poll(subject, {
            ...{ asker: session.asker, signal },
            timeoutNsOf: (operation) => this.#timeoutNs(restore, operation),
          }),
        { ...about, what: 'store the operations of a restore' },
      );
    const inPlace = new RestoredInPlace({
      ...{ poll, log, signal, pollMs, client: cluster },
      namespace: restore.metadata.namespace ?? '',
      timeoutMs: Number(
        (goDurationNs(restore.spec.itemOperationTimeout) ?? OPERATION_NS) / 1_000_000n,
      ),
      whileWaiting: request.whileWaiting ?? ((task) => task()),
    });
    inPlace.note(journal.operations);
    const there: DoneItem[] = [];
    const noteThere = (item: DoneItem): void => {
      if (item.kind !== CLAIMS) return;
      if (item.exists && item.outcome !== 'created') there.push(item);
      if (!item.exists && item.outcome === 'failed') inPlace.noteRefused(item);
    };
    if (inPlacePolicyOf(restore)) for (const item of journal.all()) noteThere(item);
    const made = await runRestore({
      client: leadingClient(client, assertLeading),
      ...{
        discovery,
        restore,
        items: contents,
        modifiers,
        policies,
        volumes,
        podVolumes,
        volumesInPlace: inPlace,
        hooks,
        log,
        signal,
      },
      actions: [
        ...this.#ownActions(restore, { cluster, files, log }),
        ...(await session.loadActions(signal)),
      ],
      sink: {
        put: async (item) => {
          isMade.note(item);
          if (inPlacePolicyOf(restore)) noteThere(item);
          const before = journal.operations.length;
          await journal.put(item);
          const begun = journal.operations.slice(before);
          operations.note(subject, begun);
          inPlace.note(begun);
        },
        willCreateNamespace: (name) => journal.willCreateNamespace(name),
      },
      ...(journal.isContinued && { journal }),
      isClockSetBack: () => journal.isClockSetBack,
      ...(this.#options.priorities && { priorities: this.#options.priorities }),
      terminatingMs: this.#options.terminatingMs,
      resourceTimeoutMs: this.#options.resourceTimeoutMs,
      patienceMs: patienceMs ?? ITEM_PATIENCE_MS,
      ...(pollMs !== undefined && { pollMs }),
      onProgress: request.onProgress,
    });
    await contents.close();
    const handed = await hooks.handOver(signal);
    const { claims, operations: begun } = journal;
    const { infos } = sources;
    sayWhatIsEmpty(
      { claims, there, withFiles: files.claims(), infos, operations: begun, restore },
      log,
    );
    const found = await restoredVolumes(claims, {
      ...{ client: cluster, restore, log, signal, operations: begun },
    });
    const claimOf = new Map(podVolumesOf(begun).map((each) => [each.name, each.claim]));
    const pods = await patiently(() => podVolumes.list(), {
      ...{ ...about, what: 'ask for the PodVolumeRestores of a restore' },
    });
    const round = await poll();
    for (const line of restoreFailureLines(restore, round.operations))
      log.error(line.message, line.about);
    log.info('restore completed');
    const left: AfterRun = {
      ...{ version: 1, restoreUID: restore.metadata.uid },
      claims: provisionedClaims(claims, sources.infos, restore),
      podVolumes: podVolumesOf(begun),
      hooks: {
        ...{ attempted: handed.attempted, failed: handed.failed, failures: [] },
        pods: handed.pods.map(({ namespace, name, uid, waitedMs, open }) => ({
          ...{ namespace, name, uid, waitedMs, open: [...open] },
        })),
      },
    };
    const logFile = await journal.finish();
    const { results } = log;
    await patiently(
      async () => {
        assertLeading();
        await storeAfterRun(bucket, restore.metadata, left, { signal });
        await new RestoreArchive(bucket).put(
          restore.metadata.name,
          {
            itemOperations: round.operations.map(orderedRecord),
            log: logFile,
            results: results.lists,
            resourceList: made.resourceList,
            volumeInfos: restoreVolumeInfosOf({
              ...found,
              natives: volumes.usedSnapshots,
              podVolumes: pods.map((each) => ({
                made: each,
                claim: claimOf.get(each.metadata.name) ?? '',
              })),
            }),
          },
          { signal, assertAllowed: assertLeading },
        );
      },
      { ...about, what: 'store the files of a restore' },
    );
    return statusAfterItems(made, results, round.operations);
  }

  /** The time of the API server is known to a second, and so is that of the Restore. */
  #isSetBack({ metadata }: Restore): boolean {
    const nowMs = Number(this.#options.client.clock.nowNs() / 1_000_000n);
    return nowMs < Date.parse(metadata.creationTimestamp) - CLOCK_MS;
  }

  /** Velero's words for a backup that cannot be had. */
  async #download<T>(
    task: () => Promise<T>,
    about: { logger: Logger; signal: AbortSignal; patienceMs: number | undefined },
  ): Promise<T> {
    try {
      return await patiently(task, { ...about, what: 'download a backup' });
    } catch (cause) {
      about.signal.throwIfAborted();
      const text = `error downloading backup: ${messageOf(cause)}`;
      throw new CodedError('NO_DOWNLOAD', text, { cause, retry: retryOf(cause) });
    }
  }

  async #modifiers(
    { metadata, spec }: Restore,
    client: Pick<KubeClient, 'get'>,
    signal: AbortSignal,
  ): Promise<ResourceModifiers | undefined> {
    const { resourceModifier } = spec;
    if (!resourceModifier) return undefined;
    const ref = { namespace: metadata.namespace, name: resourceModifier.name };
    return ResourceModifiers.fromConfigMap(await client.get(CONFIG_MAPS, ref, { signal }));
  }

  async #policies(
    { metadata, spec }: Restore,
    client: Pick<KubeClient, 'get'>,
    signal: AbortSignal,
  ): Promise<FinePolicies | undefined> {
    const { resourcePolicy } = spec;
    if (!resourcePolicy) return undefined;
    const ref = { namespace: metadata.namespace, name: resourcePolicy.name };
    return this.#options.readPolicies?.(await client.get(CONFIG_MAPS, ref, { signal }));
  }

  /** Whether pods of the backup are made, by what became of them, or else by what will. */
  #madePods(
    { restore }: RestoreRequest,
    parts: RunParts,
    given: { readonly items: Contents; readonly policies: FinePolicies | undefined },
  ) {
    const { client, discovery } = this.#options;
    const { journal, signal } = parts;
    const outcomes = new Map<string, boolean>();
    const note = ({ kind, namespace, name, outcome }: DoneItem): void => {
      if (kind === PODS) outcomes.set(`${namespace}/${name}`, outcome === 'created');
    };
    for (const item of journal.all()) note(item);
    return {
      note,
      ask: async (pod: { readonly namespace: string; readonly name: string }): Promise<boolean> => {
        const target = restore.spec.namespaceMapping?.[pod.namespace] ?? pod.namespace;
        const known = outcomes.get(`${target}/${pod.name}`);
        if (known !== undefined) return known;
        return isPodRestored(pod, { client, resources: discovery, restore, ...given, signal });
      },
    };
  }

  async #volumes(
    { restore }: RestoreRequest,
    { journal, log, signal }: RunParts,
    given: {
      readonly session: RestoreSession;
      readonly cluster: KubeClient;
    } & Pick<VolumeSources, 'factsOf' | 'natives'>,
  ): Promise<RestoredVolumes> {
    const { session, cluster, factsOf, natives } = given;
    const { terminatingMs, snapshotLocations, pollMs } = this.#options;
    const names = new Set(natives.flatMap(({ spec }) => (spec.location ? [spec.location] : [])));
    const volumes = new RestoredVolumes({
      ...{ client: cluster, restore, factsOf, log, signal, terminatingMs },
      locations: names.size === 0 ? [] : await snapshotLocations([...names], signal),
      snapshotters: (provider, config) => session.snapshotter(provider, config),
      ...(pollMs !== undefined && { pollMs }),
      onFact: async (fact) => {
        // A volume that the provider has made is known to nobody else. The rest is decided again as it was, and a put for each takes long with
        // thousands of volumes.
        if (fact.kind === 'volume') await journal.addFact(fact);
        else journal.noteFact(fact);
      },
    });
    volumes.resume(journal.facts.filter(isOfVolumes));
    return volumes;
  }

  /** Velero's own, by their names; those of plugins come after them. */
  #ownActions(
    restore: Restore,
    { cluster, files, log }: { cluster: KubeClient; files: FileBackups; log: RestoreLog },
  ): RestoreAction[] {
    const { namespace = '' } = restore.metadata;
    return [
      ...openRestoreActions(cluster, namespace),
      initHookAction(),
      waitContainerAction({ client: cluster, namespace, ...this.#options.helper, files, log }),
    ].sort((a, b) => (a.name < b.name ? -1 : 1));
  }

  #timeoutNs(restore: Restore, operation: Operation): Nanoseconds {
    const asked = goDurationNs(restore.spec.itemOperationTimeout) ?? OPERATION_NS;
    return this.#options.timeoutNsOf?.(actionOf(operation), restore, asked) ?? asked;
  }

  async end(restore: Restore, location: string, signal: AbortSignal): Promise<void> {
    await using opened = await this.#options.buckets.open(location, signal);
    const { name, uid } = restore.metadata;
    const subject: Subject = { kind: 'Restore', name, uid, location };
    await this.#ending.cancel(restore, subject, { bucket: opened.bucket, signal });
  }

  async forget(restore: Restore, location: string, signal: AbortSignal): Promise<void> {
    await using opened = await this.#options.buckets.open(location, signal);
    const { name, uid } = restore.metadata;
    await removeRestoreJournal({ bucket: opened.bucket, name, uid, signal });
  }
}

const isOfFiles = (fact: RestoreFact): fact is FileRestoreFact => fact.kind === 'files';
const isOfVolumes = (fact: RestoreFact): fact is VolumeFact =>
  fact.kind !== 'files' && fact.kind !== 'namespace' && fact.kind !== 'clock';

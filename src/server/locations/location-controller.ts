import { Gauge, type Registry } from 'prom-client';
import {
  asError,
  codeOf,
  type Logger,
  messageOf,
  redact,
  rfc3339Seconds,
} from '../../base/index.ts';
import {
  BACKUP_STORAGE_LOCATIONS,
  type BackupStorageLocation,
  Controller,
  type KubeClient,
  keyOf,
  refOf,
  type Result,
  isPassingAnswer,
} from '../../kube/index.ts';
import { type Lead, LeadingController } from '../leading-controller.ts';
import { WatchedKind } from '../watched-kind.ts';
import { LocationChecks } from './location-checks.ts';
import type { LocationStoreOptions } from './location-stores.ts';
import { frequencyMsOf, restUntilValidation } from './validation-plan.ts';

export interface LocationControllerOptions {
  readonly client: KubeClient;
  readonly logger: Logger;
  readonly namespace: string;
  readonly host: string;
  readonly registry: Registry;
  readonly stores: Omit<LocationStoreOptions, 'client' | 'namespace'>;
  /** Interval for locations without their own frequency; 0: only once. */
  readonly validationFrequencyMs: number;
  /** The default if no location is marked; `''` for none. */
  readonly defaultLocation: string;
}

/** Workers only wait for the API server. */
const WORKERS = 8;
/** Longest delay between checks, because clocks may be set. Our choice. */
const LOOK_MS_MAX = 60_000;
/** Our choice: etcd and `kubectl describe` allow more, but people do not read it. */
const MESSAGE_CHARS_MAX = 2000;
/** Occasions to check which location is the default. */
const AT_START = 'start';
const AT_CHANGE = 'change';

/**
 * Validates BackupStorageLocations like Velero's controller of that name, and allows a single
 * default location. Velero's controller cannot be disabled: do not run its server beside this
 * server.
 */
export class LocationController extends LeadingController<LocationRun> {
  readonly name = 'backup-storage-location';
  readonly #options: LocationControllerOptions;

  constructor(options: LocationControllerOptions) {
    super(options);
    this.#options = options;
    registerLocationMetrics(options.registry, () => this.now?.described() ?? []);
  }

  protected begin(lead: Lead): LocationRun {
    return new LocationRun(this.#options, lead);
  }
}

/** The result of a validation. */
interface Validated {
  /** State of the location at that time. */
  readonly state: string;
  /** RFC 3339. */
  readonly at: string;
  readonly problem: Error | undefined;
}

/** A period of leadership. */
class LocationRun {
  readonly #options: LocationControllerOptions;
  readonly #lead: Lead;
  readonly #locations: WatchedKind<BackupStorageLocation, Validated>;
  readonly #defaults: Controller;
  readonly #checks: LocationChecks;
  /** Results that this process wrote. The cache may lag behind. */
  readonly #written = new Map<string, { readonly state: string; readonly at: string }>();

  constructor(options: LocationControllerOptions, lead: Lead) {
    const { client, logger, namespace } = options;
    this.#options = options;
    this.#lead = lead;
    this.#locations = new WatchedKind({
      ...options,
      name: 'backup-storage-location',
      workers: WORKERS,
      resource: BACKUP_STORAGE_LOCATIONS,
      reconcile: (key) => this.#reconcile(key),
    });
    this.#defaults = new Controller({
      name: 'default-backup-storage-location',
      workers: 1,
      logger,
      reconcile: (key) => this.#settleDefaults(key === AT_START),
    });
    this.#checks = new LocationChecks({ ...options.stores, client, namespace });
  }

  get failure(): string | undefined {
    return this.#locations.failure;
  }

  async run(): Promise<void> {
    await this.#locations.run(this.#lead.signal, {
      onSynced: () => {
        this.#defaults.queue.add(AT_START);
      },
      onChange: (after, before) => this.#changed(after, before),
      others: [this.#defaults],
    });
  }

  /** Whether a validation may be due. Changes of the status, each minute, do not count. */
  #changed(
    after: BackupStorageLocation | undefined,
    before: BackupStorageLocation | undefined,
  ): boolean {
    if (after?.spec?.default === true && before?.spec?.default !== true) {
      this.#defaults.queue.add(AT_CHANGE);
    }
    if (!after && before) this.#forget(keyOf(before.metadata));
    return after !== undefined && (!before || stateOf(before) !== stateOf(after));
  }

  #forget(key: string): void {
    this.#locations.work.forget(key);
    this.#checks.forget(key);
    this.#written.delete(key);
  }

  async #reconcile(key: string): Promise<Result | undefined> {
    const location = this.#locations.objects.get(refOf(key));
    if (!location || location.metadata.deletionTimestamp !== undefined) {
      this.#forget(key);
      return undefined;
    }
    const state = stateOf(location);
    const ended = this.#locations.work.ended(key);
    if (ended && 'error' in ended) {
      // Says nothing about the location: the controller retries.
      this.#locations.work.forget(key);
      throw ended.error;
    }
    if (ended) {
      if (ended.result.state === state) await this.#write(key, location, ended.result);
      this.#locations.work.forget(key);
    }
    // The end of the validation wakes it.
    if (this.#locations.work.isRunning(key)) return { isUnderWay: true };
    const restMs = this.#restMs(key, location, state);
    if (restMs > 0) return { requeueAfterMs: Math.min(restMs, LOOK_MS_MAX) };
    this.#locations.work.begin(key, { run: (task) => task() }, () =>
      this.#validate(key, location, state),
    );
    return { isUnderWay: true };
  }

  /** Time until the next validation: 0 if not validated in the current state, as in Velero. */
  #restMs(key: string, { spec }: BackupStorageLocation, state: string): number {
    const written = this.#written.get(key);
    if (written?.state !== state) return 0;
    const { client, validationFrequencyMs } = this.#options;
    return restUntilValidation({
      frequency: spec?.validationFrequency,
      serverFrequencyMs: validationFrequencyMs,
      lastValidationTime: written.at,
      nowMs: Number(client.clock.nowNs() / 1_000_000n),
    });
  }

  /** Rejects on errors of the API server or at shutdown, which say nothing about the location. */
  async #validate(key: string, location: BackupStorageLocation, state: string): Promise<Validated> {
    const { client, logger } = this.#options;
    const { validationFrequency: frequency } = location.spec ?? {};
    if (frequency != null && frequencyMsOf(frequency) === undefined) {
      const fields = { location: location.metadata.name, frequency };
      logger.debug(
        fields,
        "its validation frequency cannot be used; the server's stands in for it",
      );
    }
    let problem: Error | undefined;
    try {
      await this.#checks.check(key, location, this.#lead.signal);
    } catch (error) {
      if (this.#lead.signal.aborted || isPassingAnswer(error)) throw error;
      problem = asError(error);
    }
    return { state, at: rfc3339Seconds(client.clock.nowNs()), problem };
  }

  async #write(
    key: string,
    location: BackupStorageLocation,
    { state, at, problem }: Validated,
  ): Promise<void> {
    const { client, logger } = this.#options;
    const { name, namespace, uid } = location.metadata;
    const message = problem && unavailable(name, problem);
    const phase = problem ? 'Unavailable' : 'Available';
    this.#lead.assertLeading();
    await client.patch(
      BACKUP_STORAGE_LOCATIONS,
      { namespace, name },
      // A changed UID means a new location of that name, and gives a conflict.
      { metadata: { uid }, status: { phase, lastValidationTime: at, message: message ?? null } },
      { signal: this.#lead.signal },
    );
    this.#written.set(key, { state, at });
    const { status } = location;
    if (status?.phase === phase && (status.message ?? '') === (message ?? '')) return;
    if (problem) {
      logger.warn(
        { location: name, code: codeOf(problem), message },
        'the location is unavailable',
      );
      this.#locations.events.record(location, 'LocationUnavailable', message ?? '', 'Warning');
    } else {
      logger.info({ location: name }, 'the location is available');
      this.#locations.events.record(
        location,
        'LocationAvailable',
        'the backup storage location is available',
      );
    }
  }

  /**
   * Keeps the newest of several defaults. Without any at start, the location of the server's flag
   * becomes the default. A user may remove it later. Velero sets that default even if another
   * location has it.
   */
  async #settleDefaults(isStart: boolean): Promise<undefined> {
    const { client, logger, namespace, defaultLocation } = this.#options;
    // Read from the API server: `velero backup-location set --default` may have written just now.
    const locations = await client.list(BACKUP_STORAGE_LOCATIONS, {
      namespace,
      signal: this.#lead.signal,
    });
    if (!locations.some(({ spec }) => spec?.default === true)) {
      if (!isStart) return undefined;
      const named = locations.find(({ metadata }) => metadata.name === defaultLocation);
      if (named) {
        await this.#setDefault(named, true);
        logger.info({ location: defaultLocation }, 'the location is made the default');
      } else {
        const text =
          'there is no default backup storage location; set one by velero backup-location set --default';
        logger.warn({ location: defaultLocation }, text);
      }
      return undefined;
    }
    const plan = planSingleDefault(locations);
    for (const location of plan?.others ?? []) {
      await this.#setDefault(location, false);
      const fields = { location: location.metadata.name, default: plan?.kept.metadata.name };
      logger.info(fields, 'the location is the default no more: another one is');
    }
    return undefined;
  }

  /** Throws `KUBE_CONFLICT` if the location changed: then all are read again. */
  async #setDefault({ metadata }: BackupStorageLocation, isDefault: boolean): Promise<void> {
    const { namespace, name, uid, resourceVersion } = metadata;
    this.#lead.assertLeading();
    await this.#options.client.patch(
      BACKUP_STORAGE_LOCATIONS,
      { namespace, name },
      { metadata: { uid, resourceVersion }, spec: { default: isDefault } },
      { signal: this.#lead.signal },
    );
  }

  *described(): Generator<{ name: string; isAvailable: boolean }> {
    for (const { metadata, status } of this.#locations.objects.list()) {
      if (status?.phase === undefined) continue;
      yield { name: metadata.name, isAvailable: status.phase === 'Available' };
    }
  }
}

/** The fields that a validation depends on. */
const stateOf = ({ metadata, spec }: BackupStorageLocation): string =>
  `${metadata.uid} ${JSON.stringify({ ...spec, default: undefined })}`;

/** Velero's message, without secrets and of limited length. */
function unavailable(name: string, problem: Error): string {
  const text = redact(`BackupStorageLocation "${name}" is unavailable: ${messageOf(problem)}`);
  return text.length > MESSAGE_CHARS_MAX ? `${text.slice(0, MESSAGE_CHARS_MAX)}…` : text;
}

/** The location that stays the default, and the other ones. */
interface SingleDefault {
  readonly kept: BackupStorageLocation;
  readonly others: readonly BackupStorageLocation[];
}

/**
 * Selects the newest of several default locations; within one second the first by name (Velero:
 * backup_storage_location_controller.go, ensureSingleDefaultBSL). Undefined if there are fewer than
 * two.
 */
export function planSingleDefault(
  locations: readonly BackupStorageLocation[],
): SingleDefault | undefined {
  const defaults = locations
    .filter(({ spec, metadata }) => spec?.default === true && !metadata.deletionTimestamp)
    .sort((a, b) => (a.metadata.name < b.metadata.name ? -1 : 1));
  if (defaults.length < 2) return undefined;
  const kept = defaults.reduce((before, next) =>
    createdMs(next) > createdMs(before) ? next : before,
  );
  return { kept, others: defaults.filter((location) => location !== kept) };
}

const createdMs = ({ metadata }: BackupStorageLocation): number =>
  Date.parse(metadata.creationTimestamp) || 0;

/** Velero's metric of locations. A location that was never validated has none, as in Velero. */
export function registerLocationMetrics(
  registry: Registry,
  locations: () => Iterable<{ readonly name: string; readonly isAvailable: boolean }>,
): void {
  new Gauge({
    name: 'velero_backup_location_status_gauge',
    help: 'Whether a backup storage location is available (1) or not (0)',
    labelNames: ['backup_location_name'],
    registers: [registry],
    collect() {
      this.reset();
      for (const { name, isAvailable } of locations()) {
        this.set({ backup_location_name: name }, isAvailable ? 1 : 0);
      }
    },
  });
}

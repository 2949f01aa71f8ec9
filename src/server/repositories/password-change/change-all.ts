import { setTimeout as sleep } from 'node:timers/promises';
import {
  CodedError,
  isCode,
  mapLimited,
  messageOf,
  namedFirst,
  type Secret,
} from '../../../base/index.ts';
import {
  type BackupRepository,
  type ElectionOptions,
  LeaderElection,
  type ObjectRef,
  PASSWORD_CHANGE_LEASE,
  PASSWORD_SECRET,
} from '../../../kube/index.ts';
import {} from '../../../repository-access/index.ts';
import { hold, isHeld, isLifted, release } from './repository-lock.ts';
import {
  changeOne,
  type Passwords,
  type RepositoryOpener,
  type Surveyed,
} from './one-repository.ts';
import { plannedPasswords } from './planned-passwords.ts';
import {
  isSame,
  loadPasswordState,
  type PasswordState,
  writePasswordState,
} from './secret-state.ts';
import { NAMED_MAX, SurveyedRepositories } from './surveyed-repositories.ts';
import { usersOfRepositories } from './repository-users.ts';

export interface ChangeAllOptions extends RepositoryOpener {
  /** Identity of this process as holder of the Lease. */
  readonly identity: string;
  /** Undefined to finish or take back an earlier change. */
  readonly newPassword: Secret | undefined;
  /** Takes back an unfinished change. */
  readonly undo: boolean;
  /** Only checks. */
  readonly dryRun: boolean;
  /** Receives a short name of each step. */
  readonly onStep?: (text: string) => void;
  readonly timing?: {
    readonly election?: ElectionOptions['timing'];
    /** Delay between the write of the Secret and the next use of repositories. */
    readonly cachesMs?: number;
    /** Time for the Lease of a killed run to expire. */
    readonly leaseMs?: number;
  };
}

export interface ChangedRepository {
  /** Name of the BackupRepository. */
  readonly name: string;
  /** The password before the change. */
  readonly had: Surveyed['has'];
}

export interface ChangeAllReport {
  readonly repositories: readonly ChangedRepository[];
  /** Repositories that another program set to Ready while they were held. */
  readonly lifted: readonly string[];
  /** Dry run: current users of the repositories. */
  readonly inTheWay: readonly string[];
}

/** The Lease of a killed run is free after 15 s. Our choice. */
const LEASE_MS = 40_000;
/** Velero's server caches the Secret for moments. Our choice. */
const CACHES_MS = 2000;
/** They mostly wait for requests. Our choice. */
const CHANGED_AT_ONCE = 16;
const HELD_AT_ONCE = 16;

/**
 * Gives a new password to all repositories of a cluster, and to their Secret. A repository has one
 * password at a time, and one put replaces it, so clients see a gap between repository and Secret.
 * During the gap no client opens a repository: the BackupRepositories are held, and the change
 * begins only if none is in use. The steps:
 *
 * 1. Open every repository and derive both keys. If one does not open, nothing is changed.
 * 2. Write the next password into the Secret beside the current one. A killed run can be finished
 *   without the user's input.
 * 3. Hold all BackupRepositories, and check again that none is in use.
 * 4. Change the password of each repository ({@link changePassword}, safe to kill at any point).
 * 5. Make the next password the current one in the Secret.
 * 6. Change repositories that were created meanwhile, and release the BackupRepositories.
 *
 * A Ready repository that is not held opens with the Secret's password at every point. The next run
 * continues a killed one. A Lease stops two runs at once.
 *
 * Throws `REPOSITORIES_NOT_CHANGEABLE` and `REPOSITORIES_IN_USE` if nothing was changed, and
 * `PASSWORD_CHANGE_STOPPED` if it must be run again. Also throws `PASSWORD_CHANGE_UNFINISHED`,
 * `PASSWORD_CHANGE_UNDER_WAY`, `NO_PASSWORD_CHANGE`, `NEW_PASSWORD_UNUSABLE`,
 * `RESTIC_REPOSITORIES`.
 */
export async function changeAllPasswords(options: ChangeAllOptions): Promise<ChangeAllReport> {
  if (options.dryRun) return new Run(options, () => undefined).dryRun();
  const { client, logger, namespace, identity, timing, signal } = options;
  const election = new LeaderElection({
    client,
    logger,
    namespace,
    identity,
    clock: options.clock,
    timing: timing?.election,
    name: PASSWORD_CHANGE_LEASE,
  });
  const over = new AbortController();
  let outcome: { report: ChangeAllReport } | { error: unknown } | undefined;
  let hasBegun = false;
  const patience = setTimeout(() => {
    if (!hasBegun) over.abort();
  }, timing?.leaseMs ?? LEASE_MS);
  try {
    await election.run(
      async (leading) => {
        hasBegun = true;
        const assertLeading = (): void => {
          leading.throwIfAborted();
          election.assertLeading();
        };
        try {
          const run = new Run({ ...options, signal: leading }, assertLeading);
          outcome = { report: await run.run() };
        } catch (error) {
          outcome = { error };
        } finally {
          over.abort();
        }
      },
      AbortSignal.any([signal, over.signal]),
    );
  } finally {
    clearTimeout(patience);
  }
  // The error of the run matters more than the reason of the signal.
  if (outcome && 'error' in outcome) throw outcome.error;
  signal.throwIfAborted();
  if (!outcome && election.failure !== undefined) {
    const text = `the Lease ${PASSWORD_CHANGE_LEASE} could not be read or written: ${election.failure}; nothing was changed`;
    throw new CodedError('LEASE_UNAVAILABLE', text, { retry: 'backoff' });
  }
  if (!outcome) {
    const text = `another run is at work (${election.holder ?? 'unknown'}), or was killed just now: nothing was changed by this one`;
    throw new CodedError('PASSWORD_CHANGE_UNDER_WAY', text);
  }
  return outcome.report;
}

/** Whether an earlier change is unfinished. Throws `NO_PASSWORD`. */
export async function isPasswordChangeBegun({
  client,
  namespace,
  signal,
}: Pick<ChangeAllOptions, 'client' | 'namespace' | 'signal'>): Promise<boolean> {
  const { next, previous } = await loadPasswordState(client, namespace, signal);
  return next !== undefined || previous !== undefined;
}

class Run {
  readonly #options: ChangeAllOptions;
  readonly #assertLeading: () => void;
  readonly #repositories: SurveyedRepositories;

  constructor(options: ChangeAllOptions, assertLeading: () => void) {
    this.#options = options;
    this.#assertLeading = assertLeading;
    this.#repositories = new SurveyedRepositories(options);
  }

  async dryRun(): Promise<ChangeAllReport> {
    const { passwords } = await this.#begin();
    await this.#repositories.surveyNew(passwords);
    return { ...this.#report(), inTheWay: await this.#users() };
  }

  async run(): Promise<ChangeAllReport> {
    const { state, passwords } = await this.#begin();
    this.#step('opening all repositories');
    await this.#repositories.surveyNew(passwords);
    const isToBeHeld = state.previous === undefined;
    const isBegun = state.next !== undefined && this.#hasBegun();
    if (isToBeHeld) await this.#assertUnused(isBegun);
    if (isToBeHeld && !state.next) await this.#write(state, { ...state, next: passwords[1] });
    try {
      if (isToBeHeld) await this.#holdAll(isBegun);
      const lifted = await this.#changeAll(state, passwords);
      this.#step('giving the repositories free');
      await this.#releaseAll();
      const last = await this.#load();
      await this.#write(last, { ...last, next: undefined, previous: undefined });
      return { ...this.#report(), lifted };
    } catch (cause) {
      if (isCode(cause, 'REPOSITORIES_IN_USE')) throw cause;
      const text = `the change of all passwords stopped: ${messageOf(cause)}; its repositories are held until it is finished: run the same command again (it needs no password), or take it back with --undo as long as the Secret has the old one`;
      throw new CodedError('PASSWORD_CHANGE_STOPPED', text, { cause });
    }
  }

  /** Whether a repository already has the password that the Secret does not have yet. */
  #hasBegun(): boolean {
    const next = this.#options.undo ? 'from' : 'to';
    return this.#repositories.all.some(({ has }) => has === next);
  }

  /** Plans the change without writing anything. */
  async #begin(): Promise<{ state: PasswordState; passwords: Passwords }> {
    const state = await this.#load();
    return { state, passwords: plannedPasswords(state, this.#options) };
  }

  async #holdAll(isBegun: boolean): Promise<void> {
    this.#step('holding the repositories');
    const refs = this.#repositories.all.map(({ repository }) => refOf(repository));
    await mapLimited(refs, HELD_AT_ONCE, (ref) => this.#hold(ref));
    try {
      // Work may have begun just before the repositories were held.
      await this.#assertUnused(isBegun);
    } catch (error) {
      if (!isBegun) {
        await this.#releaseAll();
        const now = await this.#load();
        await this.#write(now, { ...now, next: undefined });
      }
      throw error;
    }
  }

  /** Returns the names of held repositories that another program set to Ready. */
  async #changeAll(state: PasswordState, passwords: Passwords): Promise<string[]> {
    const lifted = new Set<string>();
    const todo = this.#repositories.all;
    this.#step(`changing the password of ${todo.length} repositories`);
    await this.#changeThese(todo, passwords);
    await this.#changeStragglers(passwords, lifted);
    if (state.previous === undefined) {
      const now = await this.#load();
      // A foreign write of the Secret could remove the password of all repositories.
      const isAsLeft =
        isSame(now.current, state.current) && isSame(now.next, this.#nextOf(state, passwords));
      if (!isAsLeft) {
        const text = `Secret ${PASSWORD_SECRET} was written by somebody else meanwhile`;
        throw new CodedError('PASSWORD_SECRET_CHANGED', text);
      }
      this.#step('writing the Secret');
      const [previous, current] = passwords;
      await this.#write(now, { current, next: undefined, previous });
      await sleep(this.#options.timing?.cachesMs ?? CACHES_MS, undefined, {
        signal: this.#options.signal,
      });
      // A server that read the old Secret may have created repositories meanwhile.
      await this.#changeStragglers(passwords, lifted);
    }
    return [...lifted];
  }

  /** The Secret's next password. An undo swaps the passwords, so it is `from` then. */
  #nextOf(state: PasswordState, [from, to]: Passwords): Secret {
    return this.#options.undo && state.next ? from : to;
  }

  /** Repeats until no new repository appears. */
  async #changeStragglers(passwords: Passwords, lifted: Set<string>): Promise<void> {
    for (;;) {
      const before = new Set(this.#repositories.all.map(uidOf));
      const all = await this.#repositories.surveyNew(passwords);
      for (const repository of all) if (isLifted(repository)) lifted.add(repository.metadata.name);
      const stragglers = this.#repositories.all.filter((each) => !before.has(uidOf(each)));
      if (stragglers.length === 0) return;
      await mapLimited(stragglers, HELD_AT_ONCE, ({ repository }) => this.#hold(refOf(repository)));
      // The repository may have been created between the survey and the hold.
      for (const each of stragglers) this.#repositories.forget(uidOf(each));
      await this.#repositories.surveyNew(passwords);
      const again = stragglers.flatMap((each) => this.#repositories.get(uidOf(each)) ?? []);
      await this.#changeThese(again, passwords);
    }
  }

  async #changeThese(surveyed: readonly Surveyed[], passwords: Passwords): Promise<void> {
    await mapLimited(surveyed, CHANGED_AT_ONCE, async (each) => {
      this.#assertLeading();
      try {
        await changeOne(each, passwords, this.#options);
      } catch (cause) {
        const text = `${each.repository.metadata.name}: ${messageOf(cause)}`;
        throw new CodedError('REPOSITORY_NOT_CHANGED', text, { cause });
      }
    });
  }

  async #hold(ref: ObjectRef): Promise<void> {
    this.#assertLeading();
    await hold(this.#options.client, ref, this.#options.signal);
  }

  async #releaseAll(): Promise<void> {
    const held = (await this.#repositories.list()).filter(isHeld);
    await mapLimited(held, HELD_AT_ONCE, async (repository) => {
      this.#assertLeading();
      await release(this.#options.client, refOf(repository), this.#options.signal);
    });
  }

  async #assertUnused(isBegun: boolean): Promise<void> {
    const users = await this.#users();
    if (users.length === 0) return;
    const end = isBegun
      ? 'some repositories have the new password already, and all are held: run it again when these have ended'
      : 'nothing was changed: wait until these have ended';
    const text = `repositories are in use by ${namedFirst(users, NAMED_MAX, (user) => user)}; ${end}`;
    throw new CodedError('REPOSITORIES_IN_USE', text);
  }

  #users(): Promise<string[]> {
    const { client, namespace, signal } = this.#options;
    return usersOfRepositories(client, namespace, signal);
  }

  #load(): Promise<PasswordState> {
    const { client, namespace, signal } = this.#options;
    return loadPasswordState(client, namespace, signal);
  }

  async #write(
    before: PasswordState,
    after: Pick<PasswordState, 'current' | 'next' | 'previous'>,
  ): Promise<void> {
    this.#assertLeading();
    await writePasswordState(this.#options.client, before, after, this.#options.signal);
  }

  #step(text: string): void {
    this.#options.onStep?.(text);
  }

  #report(): ChangeAllReport {
    const repositories = this.#repositories.all
      .map(({ repository, has }) => ({ name: repository.metadata.name, had: has }))
      .sort((a, b) => (a.name < b.name ? -1 : 1));
    return { repositories, lifted: [], inTheWay: [] };
  }
}

const uidOf = ({ repository }: Surveyed): string => repository.metadata.uid;

const refOf = ({ metadata }: BackupRepository): ObjectRef => ({
  namespace: metadata.namespace,
  name: metadata.name,
});

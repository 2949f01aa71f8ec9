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
import { hold, isHeld, isLifted, release } from './hold.ts';
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
import { usersOfRepositories } from './under-way.ts';

export interface ChangeAllOptions extends RepositoryOpener {
  /** Of this process, by which it holds the Lease. */
  readonly identity: string;
  /** Undefined where a change that was begun is to be finished, or taken back. */
  readonly newPassword: Secret | undefined;
  /** Takes a change back that was begun and has not ended. */
  readonly undo: boolean;
  /** Only looks. */
  readonly dryRun: boolean;
  /** What is done now, in a few words. */
  readonly onStep?: (text: string) => void;
  readonly timing?: {
    readonly election?: ElectionOptions['timing'];
    /** After the Secret was written, before repositories are used again. */
    readonly cachesMs?: number;
    /** For the Lease of a run that was killed to run out. */
    readonly leaseMs?: number;
  };
}

export interface ChangedRepository {
  /** Of the BackupRepository. */
  readonly name: string;
  /** What it had before. */
  readonly had: Surveyed['has'];
}

export interface ChangeAllReport {
  readonly repositories: readonly ChangedRepository[];
  /** Those that somebody else declared ready while their password was not the one in the Secret. */
  readonly lifted: readonly string[];
  /** A dry run: what stands in the way now. */
  readonly inTheWay: readonly string[];
}

/** The Lease of a killed run is free after 15 s. Our choice. */
const LEASE_MS = 40_000;
/** Velero's server has a cache of the Secret, which is behind by moments. Our choice. */
const CACHES_MS = 2000;
/** They wait for requests. Our choice. */
const CHANGED_AT_ONCE = 16;
const HELD_AT_ONCE = 16;

/**
 * Gives all repositories of a cluster and the Secret that has their one password a new password.
 * Each repository has one password at a time, and one put decides which; so for those that only
 * know the Secret there cannot be a moment without a gap. Nobody opens one in that gap: the
 * BackupRepositories are held meanwhile, and nothing is begun while something uses one. In this
 * order:
 *
 * 1. every repository is opened, and both keys are derived; nothing is changed when one does not
 *   open;
 * 2. the Secret gets the next password beside the one that counts, so that a run that was killed
 *   can be finished without it;
 * 3. all BackupRepositories are held, and it is looked once more who uses one;
 * 4. each repository gets the next password ({@link changePassword}, which may be killed at any
 *   point);
 * 5. the Secret's password is the next one from now on;
 * 6. what was created meanwhile gets it too, and the BackupRepositories are given free.
 *
 * A repository that is Ready and not held opens with the Secret's password at every point. A run
 * that was killed is continued by the next; of two at once one works, by a Lease. Throws
 * `REPOSITORIES_NOT_CHANGEABLE` and `REPOSITORIES_IN_USE` when nothing was changed,
 * `PASSWORD_CHANGE_STOPPED` when it has to be run again, `PASSWORD_CHANGE_UNFINISHED`,
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
  // What has to be said then counts more than why it stopped.
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

/** Whether a change was begun that is to be finished or taken back. Throws `NO_PASSWORD`. */
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

  /** Whether a repository has the password already that the Secret does not have yet. */
  #hasBegun(): boolean {
    const next = this.#options.undo ? 'from' : 'to';
    return this.#repositories.all.some(({ has }) => has === next);
  }

  /** What is to be done. Changes nothing. */
  async #begin(): Promise<{ state: PasswordState; passwords: Passwords }> {
    const state = await this.#load();
    return { state, passwords: plannedPasswords(state, this.#options) };
  }

  async #holdAll(isBegun: boolean): Promise<void> {
    this.#step('holding the repositories');
    const refs = this.#repositories.all.map(({ repository }) => refOf(repository));
    await mapLimited(refs, HELD_AT_ONCE, (ref) => this.#hold(ref));
    try {
      // What began before it could see that the repositories are held.
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

  /** The names of those that others have declared ready meanwhile. */
  async #changeAll(state: PasswordState, passwords: Passwords): Promise<string[]> {
    const lifted = new Set<string>();
    const todo = this.#repositories.all;
    this.#step(`changing the password of ${todo.length} repositories`);
    await this.#changeThese(todo, passwords);
    await this.#changeStragglers(passwords, lifted);
    if (state.previous === undefined) {
      const now = await this.#load();
      // Whoever writes the Secret from elsewhere would take the password of all repositories away.
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
      // Made by a server that had read the Secret before.
      await this.#changeStragglers(passwords, lifted);
    }
    return [...lifted];
  }

  /**
   * What the Secret has as its next password: when a change is taken back, that is the one that it
   * is taken back from.
   */
  #nextOf(state: PasswordState, [from, to]: Passwords): Secret {
    return this.#options.undo && state.next ? from : to;
  }

  /** Until there is none that was made since. */
  async #changeStragglers(passwords: Passwords, lifted: Set<string>): Promise<void> {
    for (;;) {
      const before = new Set(this.#repositories.all.map(uidOf));
      const all = await this.#repositories.surveyNew(passwords);
      for (const repository of all) if (isLifted(repository)) lifted.add(repository.metadata.name);
      const stragglers = this.#repositories.all.filter((each) => !before.has(uidOf(each)));
      if (stragglers.length === 0) return;
      await mapLimited(stragglers, HELD_AT_ONCE, ({ repository }) => this.#hold(refOf(repository)));
      // It may have been created between the two looks.
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

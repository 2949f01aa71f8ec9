import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { CodedError } from '../../base/index.ts';
import { type BlobStorage, openStorage } from '../../blob/index.ts';
import {
  ARCHIVE_KEYS_SECRET,
  type KubeClient,
  PASSWORD_SECRET,
  SECRETS,
} from '../../kube/index.ts';
import {
  ensurePasswordSecret,
  isPasswordWellKnown,
  type PasswordSecretOutcome,
  WELL_KNOWN_REMEDY,
} from '../../server/index.ts';
import { until } from './objects.ts';

export interface InstalledPassword {
  readonly client: KubeClient;
  readonly namespace: string;
  readonly secretFile: string | undefined;
  readonly signal: AbortSignal;
  readonly say: (text: string) => void;
}

/** A bucket that only pods can reach must not delay the command. Our choice. */
const LOOK_MS = 5000;

/**
 * Creates the Secret of the repository password if this machine can read the bucket. Otherwise the
 * server creates it. Returns the outcome. Throws `NO_PASSWORD` if repositories exist and their
 * password is unknown.
 */
export async function installPassword(of: InstalledPassword): Promise<PasswordSecretOutcome> {
  const { client, namespace, secretFile, signal } = of;
  const directory = mkdtempSync(join(tmpdir(), 'longshore-install-'));
  const late = AbortSignal.timeout(LOOK_MS);
  const inTime = <T>(work: Promise<T>): Promise<T> =>
    Promise.race([
      work,
      new Promise<never>((_, reject) => {
        late.addEventListener('abort', () => reject(noAnswer()), { once: true });
      }),
    ]);
  const open = async (location: string): Promise<BlobStorage> => {
    // The directory is on the nodes, not on this machine.
    if (location.startsWith('file:')) throw ofNodes();
    return inTime(openStorage(location));
  };
  try {
    const outcome = await inTime(
      ensurePasswordSecret({
        client,
        namespace,
        directory,
        openStorage: open,
        defaultCredentials: () => secretFile,
        signal: AbortSignal.any([signal, late]),
      }),
    ).catch((error: unknown): PasswordSecretOutcome => {
      signal.throwIfAborted();
      if (!late.aborted) throw error;
      return { state: 'later', why: noAnswer().message };
    });
    await tell(outcome, of);
    return outcome;
  } finally {
    rmSync(directory, { recursive: true, force: true });
  }
}

const noAnswer = (): CodedError =>
  new CodedError('STORAGE_UNREACHABLE', `no answer within ${LOOK_MS / 1000} s`);
const ofNodes = (): CodedError =>
  new CodedError('STORAGE_UNREACHABLE', 'its directory is on the nodes');

async function tell(
  outcome: PasswordSecretOutcome,
  { client, namespace, signal, say }: InstalledPassword,
): Promise<void> {
  const what = `Secret ${PASSWORD_SECRET}`;
  const { state } = outcome;
  if (state === 'later') {
    say(`${what}: the server will create it with a random password (${outcome.why})`);
  } else if (state === 'random') {
    say(`${what}: created, with a random password for all repositories`);
  } else if (state === 'there') {
    say(`${what}: there already, and left as it is`);
  }
  if (state === 'well-known') {
    say(`${what}: created with Velero's password, because the bucket has repositories with it`);
  }
  await tellCare({ client, namespace, signal, say });
}

/** Tells the user how to handle the password. */
async function tellCare({
  client,
  namespace,
  signal,
  say,
}: Omit<InstalledPassword, 'secretFile'>): Promise<void> {
  if (await isPasswordWellKnown(client, namespace, signal)) {
    const what = `Secret ${PASSWORD_SECRET}`;
    say(`${what}: everybody knows this password, Velero's default. ${WELL_KNOWN_REMEDY}`);
    return;
  }
  const names = `${PASSWORD_SECRET} ${ARCHIVE_KEYS_SECRET}`;
  const copy = `kubectl -n ${namespace} get secret ${names} --ignore-not-found -o yaml > longshore-secrets.yaml`;
  say(
    `Keep a copy of both Secrets outside of the cluster. Without the password no volume can be restored; without the keys of earlier passwords no older archive can be checked or decrypted: ${copy}`,
  );
}

/** Waits for the Secret that the server creates, and reports it. */
export async function untilPassword(of: InstalledPassword, timeoutMs: number): Promise<void> {
  const { client, namespace, signal, say } = of;
  const ref = { namespace, name: PASSWORD_SECRET };
  const isThere = async (): Promise<boolean> =>
    (await client.find(SECRETS, ref, { signal })) !== undefined;
  if (await until(isThere, timeoutMs, signal)) {
    say(`Secret ${PASSWORD_SECRET}: created by the server`);
    await tellCare(of);
  } else {
    const why = `kubectl -n ${namespace} logs deployment/longshore-server says why`;
    say(`Secret ${PASSWORD_SECRET}: the server has not created it yet: ${why}`);
  }
}

import { type Clock, isCode, Secret, systemClock } from '../../src/base/index.ts';
import type { BlobStorage } from '../../src/blob/index.ts';
import {
  BLOBCFG_BLOB,
  changePassword,
  createFormat,
  FORMAT_BLOB,
  loadFormat,
  loadFormatToChange,
} from '../../src/repository/index.ts';
import {
  deriveFormatKey,
  openFormat,
  SCRYPT,
  sealFormat,
} from '../../src/repository/format/keys.ts';
import { DEFAULT_FORMAT } from '../support/repositories.ts';
import { MemoryStorage } from '../support/memory-storage.ts';
import { expect } from 'vitest';

export const HOUR_NS = 3_600_000_000_000n;
const PASSWORDS = ['a', 'b', 'c', 'd', 'e'] as const;
export type Password = (typeof PASSWORDS)[number];
/** From one password to another. */
export type Command = readonly [Password, Password];

export const STORES = {
  'with conditional puts': { conditionalPut: 'works' },
  'that takes conditional puts and ignores the condition': { conditionalPut: 'ignores' },
  'with object lock': { hasObjectLock: true },
} as const;

type StoreOptions = (typeof STORES)[keyof typeof STORES];
const made = new Map<StoreOptions, Promise<MemoryStorage>>();

/** A repository with the password `a`. */
export async function create(
  options: StoreOptions,
  clock: Clock = systemClock,
): Promise<MemoryStorage> {
  const known = made.get(options) ?? make(options);
  made.set(options, known);
  return (await known).clone(clock);
}

/** All keys are derived here, so that nothing later takes its time. */
async function make(options: StoreOptions): Promise<MemoryStorage> {
  const storage = new MemoryStorage(options);
  await createFormat(storage, new Secret('a'), DEFAULT_FORMAT, undefined, () => Promise.resolve());
  if ('hasObjectLock' in options) {
    const config = '{"retentionMode":"GOVERNANCE","retentionPeriod":86400000000000}';
    const key = await keyOf(storage, 'a');
    storage.set(BLOBCFG_BLOB, sealFormat(key, uniqueIdOf(storage), Buffer.from(config)));
  }
  for (const password of PASSWORDS) await keyOf(storage, password);
  return storage;
}

const uniqueIdOf = ({ blobs }: MemoryStorage): Uint8Array => {
  const text = blobs.get(FORMAT_BLOB)?.bytes.toString() ?? '';
  return Buffer.from((JSON.parse(text) as { uniqueID: string }).uniqueID, 'base64');
};

const keyOf = (storage: MemoryStorage, password: Password): Promise<Uint8Array> =>
  deriveFormatKey(new Secret(password), SCRYPT, uniqueIdOf(storage));

export const optionsOf = (
  storage: BlobStorage,
): Omit<Parameters<typeof loadFormat>[0], 'password'> => ({
  storage,
  clock: systemClock,
  warn: () => undefined,
});

export async function change(
  storage: BlobStorage,
  [from, to]: Command,
  settle: () => Promise<void> = () => Promise.resolve(),
): Promise<void> {
  const passwords = [new Secret(from), new Secret(to)] as const;
  const format = await loadFormatToChange(optionsOf(storage), passwords);
  await changePassword(storage, format, passwords[1], { settle });
}

/** Retention for each password, or the code of the error. */
async function outcomes(storage: BlobStorage): Promise<Record<Password, string>> {
  const found: [Password, string][] = [];
  for (const password of PASSWORDS) {
    const said = await loadFormat({ ...optionsOf(storage), password: new Secret(password) }).then(
      ({ retention }) => `opens, retention ${retention?.mode ?? 'none'}`,
      (error: unknown) => {
        if (isCode(error, 'WRONG_PASSWORD', 'DAMAGED_BLOB', 'NOT_A_REPOSITORY')) return error.code;
        throw error;
      },
    );
    found.push([password, said]);
  }
  return Object.fromEntries(found) as Record<Password, string>;
}

/** The one password that opens the repository, with the retention that it had. */
export async function opener(storage: MemoryStorage, place: string): Promise<Password> {
  const found = await outcomes(storage);
  const opening = PASSWORDS.filter((password) => found[password].startsWith('opens'));
  expect(opening, `${place}: ${JSON.stringify(found)}`).toHaveLength(1);
  const [password] = opening as [Password];
  const retention = storage.hasObjectLock ? 'GOVERNANCE' : 'none';
  expect(found[password], place).toBe(`opens, retention ${retention}`);
  return password;
}

/**
 * The real Kopia refuses a kopia.blobcfg of another password. A missing blob means "no object
 * lock".
 */
export async function kopiaOpens(storage: MemoryStorage, password: Password): Promise<boolean> {
  const sealed = storage.blobs.get(BLOBCFG_BLOB)?.bytes;
  if (!sealed) return !storage.hasObjectLock;
  try {
    openFormat(await keyOf(storage, password), uniqueIdOf(storage), sealed);
    return true;
  } catch {
    return false;
  }
}

export class Killed extends Error {}

/** Errors that the loser of a race may return. */
export const REFUSALS = ['PASSWORD_CHANGE_RACED', 'WRONG_PASSWORD'];

export const textOf = ([from, to]: Command): string => `${from}>${to}`;

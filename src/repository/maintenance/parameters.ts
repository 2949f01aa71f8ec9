import { z } from 'zod';
import { CodedError } from '../../base/index.ts';
import type { Manifest, ManifestId } from '../manifest/manifest-manager.ts';
import { type Client, clientName, type Repository } from '../repository.ts';

/** A Go int64. Durations from 104 days on are bigint, so that all digits are written back. */
const long = z.union([z.number(), z.bigint()]);

const cycle = z.looseObject({
  enabled: z.boolean().optional().default(false),
  interval: long.optional().default(0),
});

/** The manifest of type `maintenance`: owner and intervals. Durations are in nanoseconds. */
const schema = z.looseObject({
  owner: z.string().optional().default(''),
  quick: cycle.prefault({}),
  full: cycle.prefault({}),
  logRetention: z
    .looseObject({
      maxTotalSize: long.optional().default(0),
      maxCount: z.number().optional().default(0),
      maxAge: long.optional().default(0),
    })
    .prefault({}),
  extendObjectLocks: z.boolean().optional().default(false),
  listParallelism: z.number().optional().default(0),
});
export type MaintenanceParameters = z.infer<typeof schema>;

const HOUR_NS = 3_600_000_000_000;

/** Kopia's defaults (repo/maintenance/maintenance_params.go). */
export function defaultParameters(owner: Client): MaintenanceParameters {
  return {
    owner: clientName(owner),
    quick: { enabled: true, interval: HOUR_NS },
    full: { enabled: true, interval: 24 * HOUR_NS },
    logRetention: { maxTotalSize: 2 ** 30, maxCount: 10_000, maxAge: 30 * 24 * HOUR_NS },
    extendObjectLocks: false,
    listParallelism: 0,
  };
}

const LABELS = { type: 'maintenance' };

/** Undefined if maintenance was never set up. Throws `DAMAGED_MAINTENANCE`. */
export async function loadMaintenanceParameters(
  repository: Repository,
): Promise<MaintenanceParameters | undefined> {
  const newest = (await repository.manifests.find(LABELS)).at(-1);
  return newest && parseParameters(newest.data);
}

function parseParameters(data: unknown): MaintenanceParameters {
  const parsed = schema.safeParse(data);
  if (parsed.success) return parsed.data;
  throw new CodedError('DAMAGED_MAINTENANCE', 'the maintenance parameters are damaged', {
    cause: parsed.error,
  });
}

/** Replaces the parameters. Durable after a flush. */
export async function putMaintenanceParameters(
  repository: Repository,
  parameters: MaintenanceParameters,
): Promise<ManifestId> {
  for (const { id } of await repository.manifests.find(LABELS)) repository.manifests.delete(id);
  return repository.manifests.put(LABELS, parameters);
}

/**
 * Makes this client the owner of maintenance if there is none. (An interrupted creation leaves no
 * owner, and every client would think it is the owner.) Puts a claim, flushes and reads back. A
 * client that sees another claim removes its own, so at most one of several clients continues.
 * Parameters without an owner stay until then, because all clients may remove their claims. Throws
 * `NOT_MAINTENANCE_OWNER`.
 */
export async function claimMaintenance(
  repository: Repository,
  parameters: MaintenanceParameters,
): Promise<MaintenanceParameters> {
  const owner = clientName(repository.client);
  const { manifests, contents } = repository;
  const mine = manifests.put(LABELS, { ...parameters, owner });
  await repository.flush();
  await contents.refresh();
  manifests.invalidate();
  const found = await manifests.find(LABELS);
  const ownerOf = ({ data }: Manifest): string => parseParameters(data).owner;
  const other = found.map(ownerOf).find((each) => each !== owner && each !== '');
  if (other === undefined) {
    for (const each of found) if (ownerOf(each) === '') manifests.delete(each.id);
  } else {
    manifests.delete(mine);
  }
  await repository.flush();
  if (other !== undefined) throw notOwner(repository, other);
  return (await loadMaintenanceParameters(repository)) ?? parameters;
}

export function notOwner({ client }: Repository, owner: string): CodedError {
  const text = `maintenance of this repository belongs to ${owner}, but this is ${clientName(client)}`;
  return new CodedError('NOT_MAINTENANCE_OWNER', `${text}; use --client ${owner}, or --force`);
}

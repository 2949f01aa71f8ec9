import { z } from 'zod';
import { CodedError } from '../../base/index.ts';

/** How blob ids spread over directories: the file `.shards` (Kopia: repo/blob/sharded, v0.23.1). */
export interface ShardParameters {
  readonly default: readonly number[];
  readonly maxNonShardedLength: number;
  readonly overrides?: readonly { prefix: string; shards: readonly number[] }[] | undefined;
}

export const SHARDS_FILE = '.shards';
/** Kopia's choice for new repositories of format 2 and 3, and of format 1. */
export const SHARDS_NEW: ShardParameters = { default: [1, 3], maxNonShardedLength: 20 };
/** Kopia's default if the file is missing. */
export const SHARDS_MISSING: ShardParameters = { default: [3, 3], maxNonShardedLength: 20 };

const sizes = z.array(z.int().min(1).max(64)).max(8);
const schema = z.object({
  default: z.nullish(sizes).transform((value) => value ?? []),
  maxNonShardedLength: z.int().min(0).optional().default(0),
  overrides: z
    .array(z.object({ prefix: z.string(), shards: z.nullish(sizes).transform((v) => v ?? []) }))
    .nullish()
    .transform((value) => value ?? undefined),
});

/** Throws `BAD_SHARDS_FILE`. */
export function parseShards(text: string): ShardParameters {
  try {
    return schema.parse(JSON.parse(text));
  } catch (cause) {
    throw new CodedError('BAD_SHARDS_FILE', `${SHARDS_FILE} is damaged: it is not sharding JSON`, {
      cause,
    });
  }
}

export function formatShards(parameters: ShardParameters): string {
  const { default: sizesOf, maxNonShardedLength } = parameters;
  return `${JSON.stringify({ default: sizesOf, maxNonShardedLength })}\n`;
}

/** Directories from the root, then the rest of the id. */
export function shardPath(parameters: ShardParameters, id: string): string[] {
  if (id.length <= parameters.maxNonShardedLength) return [id];
  const override = parameters.overrides?.find(({ prefix }) => id.startsWith(prefix));
  const path: string[] = [];
  let rest = id;
  for (const size of override?.shards ?? parameters.default) {
    if (rest.length <= size) break;
    path.push(rest.slice(0, size));
    rest = rest.slice(size);
  }
  return [...path, rest];
}

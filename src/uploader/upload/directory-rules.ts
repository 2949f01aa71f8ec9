import { joinPath, type Logger } from '../../base/index.ts';
import type { Policy, PolicyTree } from '../../snapshot/index.ts';
import { type IgnoreFileEntry, IgnoreRules } from '../listing/ignore-rules.ts';
import type { SourceDirectory } from '../listing/listing.ts';
import { openRegular, readStart } from '../file-data/regular-file.ts';
import { relativePath, type Visit } from './directory-visit.ts';

export const CACHE_TAG_NAME = 'CACHEDIR.TAG';
/** bford.info/cachedir: directories with this tag need no backup. */
export const CACHE_TAG = 'Signature: 8a477f597d28d172789f06886806bc55';

export interface EnterRulesOptions {
  readonly policies: Pick<PolicyTree, 'definedAt'>;
  readonly logger: Logger;
}

/** The rules below a directory: inherited, of its policy, and of its own ignore files. */
export async function enterRules(
  visit: Visit,
  directory: SourceDirectory,
  { policies, logger }: EnterRulesOptions,
): Promise<IgnoreRules> {
  const defined = policies.definedAt(visit.relative);
  const find = (name: string): IgnoreFileEntry | undefined => {
    const entry = directory.entries.find((each) => each.name === name && each.type !== 'd');
    if (!entry) return undefined;
    const path = joinPath(visit.path, entry.rawName);
    return { path, shown: relativePath(visit, name), isRegular: entry.type === 'f' };
  };
  return visit.rules.enter(visit.relative, defined, find, logger);
}

/** Whether a directory has a cache tag. */
export async function isCacheDirectory(
  visit: Visit,
  { entries }: SourceDirectory,
  policy: { readonly files: Pick<Policy['files'], 'ignoreCacheDirs'> },
): Promise<boolean> {
  if (policy.files.ignoreCacheDirs === false) return false;
  const tag = entries.find(({ name, type }) => name === CACHE_TAG_NAME && type === 'f');
  if (!tag || tag.sizeBytes < CACHE_TAG.length) return false;
  try {
    const file = await openRegular(joinPath(visit.path, CACHE_TAG_NAME));
    if (!file) return false;
    try {
      return (await readStart(file, CACHE_TAG.length)).toString() === CACHE_TAG;
    } finally {
      await file.close();
    }
  } catch {
    return false;
  }
}

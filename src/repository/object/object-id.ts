import { CodedError } from '../../base/index.ts';
import { type ContentId, parseContentId, prefixOf } from '../index/content-id.ts';

/** `I*`, `Z?`, content ID. `Ix9f…` is an indirect file, `k0e…` a directory in one content. */
export type ObjectId = string & { readonly brand: 'ObjectId' };

export interface ParsedObjectId {
  /** Levels of indexes above the contents. */
  readonly indirections: number;
  /** The content includes its own compression header (index version 1). */
  readonly compressed: boolean;
  readonly contentId: ContentId;
}

/** Deeper nesting than any file needs. Kopia has no limit. */
const INDIRECTIONS_MAX = 8;

/** Throws `BAD_OBJECT_ID`. */
export function parseObjectId(text: string): ParsedObjectId {
  const match = /^(I*)(Z?)D?([0-9a-z]+)$/.exec(text);
  const [, levels = '', compressed = '', content = ''] = match ?? [];
  try {
    if (match && levels.length <= INDIRECTIONS_MAX && !(levels && compressed)) {
      const contentId = parseContentId(content);
      return { indirections: levels.length, compressed: compressed !== '', contentId };
    }
  } catch {
    // The message below names the whole ID.
  }
  throw new CodedError('BAD_OBJECT_ID', `"${text.slice(0, 80)}" is not an object ID`);
}

export function objectId(text: string): ObjectId {
  parseObjectId(text);
  return text as ObjectId;
}

export const isDirectoryObject = (id: ObjectId): boolean =>
  prefixOf(parseObjectId(id).contentId) === 'k';

/** The object's index, one level up: the ID without its first `I`. */
export const indexObjectOf = (id: ObjectId): ObjectId => id.slice(1) as ObjectId;

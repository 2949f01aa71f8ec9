/** What one upload has done so far. Counted as it happens; read it whenever you like. */
export interface UploadCounters {
  files: number;
  cachedFiles: number;
  directories: number;
  /** Entries left out by rules or types: not stored, no error. */
  skipped: number;
  excludedFiles: number;
  excludedDirectories: number;
  excludedBytes: number;
  errors: number;
  ignoredErrors: number;
  /** Entries that were removed after they were listed: left out, no error. */
  vanished: number;
  /** Entries that were stored without extended attributes, which could not be read. */
  attributesUnread: number;
  /** Bytes of all files, cached ones included. */
  totalBytes: number;
  /** Bytes read from the source. */
  bytesRead: number;
  /** Bytes of files taken over from a previous snapshot without reading. */
  cachedBytes: number;
  /** Plaintext bytes that were not in the repository yet. */
  bytesNew: number;
  /** What they take in packs, after compression and encryption. */
  bytesPacked: number;
  contentsNew: number;
  contentsDeduplicated: number;
  /** Objects that were looked over before a long upload counts. */
  objectsChecked: number;
  /** Files that the listings have shown so far, and their bytes; cached ones included. */
  filesFound: number;
  bytesFound: number;
  /** Bytes of holes, which need no reading. */
  bytesInHoles: number;
  /** Every directory is listed: what was found is all that there is. */
  isListed: boolean;
}

export const newUploadCounters = (): UploadCounters => ({
  files: 0,
  cachedFiles: 0,
  directories: 0,
  skipped: 0,
  excludedFiles: 0,
  excludedDirectories: 0,
  excludedBytes: 0,
  errors: 0,
  ignoredErrors: 0,
  vanished: 0,
  attributesUnread: 0,
  totalBytes: 0,
  bytesRead: 0,
  cachedBytes: 0,
  bytesNew: 0,
  bytesPacked: 0,
  contentsNew: 0,
  contentsDeduplicated: 0,
  objectsChecked: 0,
  filesFound: 0,
  bytesFound: 0,
  bytesInHoles: 0,
  isListed: false,
});

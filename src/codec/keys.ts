/** Keys and algorithms of one repository, as the threads need them. */
export interface CodecKeys {
  readonly hash: string;
  readonly encryption: string;
  readonly secret: Uint8Array;
  readonly masterKey: Uint8Array;
}

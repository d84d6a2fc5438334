//! Signatures: they fit one key, one content and one version.
#![cfg(feature = "sign")]

mod common;

use common::Folder;
use ed25519_dalek::SigningKey;
use shard_format::json::object;
use shard_format::shard::{Signature, WriterOptions};
use shard_format::{Code, Role, ShardReader, ShardWriter};

#[test]
fn a_signature_fits_the_content_and_nothing_else() {
    let folder = Folder::new("signature");
    let write = |file: &str, content: &[u8], role| {
        let options =
            WriterOptions { role, schema: Some(object([("description", "mine".into())])), ..WriterOptions::default() };
        let mut writer = ShardWriter::create(folder.path(file), options).unwrap();
        writer.write("a", content).unwrap();
        writer.finish().unwrap();
        ShardReader::open(folder.path(file)).unwrap()
    };
    let reader = write("a.shard", b"content", Role::UNKNOWN);
    let key = SigningKey::from_bytes(&[7; 32]);
    let signature = reader.sign(&key).unwrap();
    assert_eq!(Signature::parse(signature.text().as_bytes()).unwrap(), signature);
    let identity = reader.verify_signature(&signature, &key.verifying_key()).unwrap();
    assert_eq!((identity.version, identity.digest()), (2, signature.identity.clone()));

    let other = SigningKey::from_bytes(&[8; 32]).verifying_key();
    let error = reader.verify_signature(&signature, &other).unwrap_err();
    assert_eq!((error.code(), error.rule()), (Code::BadSignature, "S-SIG-1"));
    let older = Signature { version: 1, ..signature.clone() };
    let error = reader.verify_signature(&older, &key.verifying_key()).unwrap_err();
    assert_eq!(error.code(), Code::BadSignature);
    for (content, role) in [(b"Content", Role::UNKNOWN), (b"content", Role::SAMPLES)] {
        let changed = write("b.shard", content, role);
        let error = changed.verify_signature(&signature, &key.verifying_key()).unwrap_err();
        assert_eq!(error.code(), Code::IdentityMismatch);
    }
}

#[test]
fn text_that_is_no_signature_is_refused() {
    for text in ["", "{}", "[]", r#"{"algorithm":"ed25519","v":2}"#] {
        let error = Signature::parse(text.as_bytes()).unwrap_err();
        assert_eq!((error.code(), error.rule()), (Code::BadMetadata, "S-SIG-2"));
    }
}

#[test]
fn other_languages_sign_the_same_bytes() {
    let Some(folder) = common::vectors("valid") else {
        return;
    };
    // Ed25519 is deterministic: this is what the Python library gives for this key.
    let expected = "4a5e4dd7a12b2fc665b65be80d7f017a2105919768d726b50b1e404736863cc1\
                    4b153464ea71e15ad4596a59103c24275182980af454cb4f52045db949db910a";
    let reader = ShardReader::open(folder.join("hello.shard")).unwrap();
    let signature = reader.sign(&SigningKey::from_bytes(&[7; 32])).unwrap();
    assert_eq!(signature.signature, expected);
}

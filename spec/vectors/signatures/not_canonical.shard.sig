{
 "algorithm": "ed25519",
 "identity": "1aeab4305547d4fd54e33d94b7c28f25a0141f2643076a750c31e9af3c3b7b88",
 "public_key": "2369eb7ae4f120b67917d4c61302919862f2ddaed936fa29226a5abeb9a4a95a",
 "signature": "1e249d1dc2bd3831d88fc0f35e373f972ad94b2f523afd2814a331c261ab2872a2bb38fd31ce9b8bedabccfa6986de750f05fe1e6e25d73902f20f840866e20a",
 "v": 2,
 "comment": "by the robot"
}